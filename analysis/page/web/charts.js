// Trajectories of the chosen cell: one chart per Chart of the page, with labelled reference losses.

import { curve, data, draw, make, parts, records, shown, shownView, state, steps } from "./data.js";

export function chart({ title, curves, log, references, small }, trials, onsets) {
  const colourOf = (trial, own) => (references ? data.classes[shownView().trials[trial]].line : own.colour);
  const series = curves.flatMap((own) =>
    trials.map((trial) => ({ ...own, trial, colour: colourOf(trial, own), values: curve(trial, own.name) })),
  );
  const lines = references ? referenceLosses(trials) : [];
  const axis = log ? logRange(series) : range(series, lines, references);
  if (!axis) return null;
  const room = Math.max(220, contentWidth(parts.detail)) / (small ? 1.02 : 1);
  const right = lines.length ? 64 : 22;
  const box = { x: 46, y: 6, width: room - 46 - right, height: small ? 90 : 140 };
  const scale = axisScales(series, axis, box);
  const across = (value, name) => draw("path", { d: `M0 ${scale.y(value)}H${box.width}`, class: name });
  const plot = draw("svg", { ...box, overflow: "hidden" });
  plot.append(...scale.yTicks.map((value) => across(value, "grid")));
  plot.append(...onsets.map((step) => draw("path", { d: `M${scale.x(step)} 0V${box.height}`, class: "onset" })));
  plot.append(...lines.map(([, value]) => across(value, "limit")));
  for (const { trial, name, colour, dash, values } of series) {
    const look = { stroke: colour, "stroke-dasharray": dash, "data-line": trial, "data-curve": name };
    plot.append(draw("path", { d: path(steps(trial), values, scale, axis), class: "line", ...look }));
  }
  const said = { role: "img", "aria-label": `${title} against the step` };
  const size = { width: room, height: box.height + 38 };
  const svg = draw("svg", { ...size, ...said }, plot, draw("rect", { ...box, class: "frame" }));
  svg.append(...tickTexts(box, scale), ...lineNames(box, scale.y, lines));
  const unit = log ? " (log axis, only above zero)" : "";
  const keys = curves.length < 2 && curves[0].label === title ? [] : curves.map((own) => key(own, references));
  return make("figure", { class: "chart" }, make("figcaption", {}, make("b", {}, title + unit), ...keys), svg);
}

// The mean of each reference loss over the trials.
function referenceLosses(trials) {
  const means = records.references.map(([name, values]) => {
    const own = trials.map((trial) => values[records.place.get(trial)]).filter(Number.isFinite);
    return [name, own.reduce((sum, value) => sum + value, 0) / own.length];
  });
  return means.filter(([, value]) => Number.isFinite(value));
}

function finite(series) {
  return series.flatMap(({ values }) => values.filter(Number.isFinite)).sort((a, b) => a - b);
}

function logRange(series) {
  const sized = finite(series).filter((value) => value > 0);
  if (!sized.length) return null;
  const [low, high] = [Math.max(sized[0], sized.at(-1) * 1e-10), sized.at(-1)];
  return low < high ? { low, high: high * 1.3, isLog: true } : { low: low / 3, high: high * 3, isLog: true };
}

// The range of all values.  For losses it starts at the median initial value and includes the reference
// losses; zoomed in, it covers the lower 60 % of the values.
function range(series, lines, isLoss) {
  const values = finite(series);
  if (!values.length) return null;
  const starts = series.map((own) => own.values[0]).filter(Number.isFinite).sort((a, b) => a - b);
  const known = lines.map(([, value]) => value);
  let [low, high] = [Math.min(values[0], ...known), values.at(-1)];
  if (isLoss) high = Math.max(starts[starts.length >> 1] ?? high, values[0], ...known);
  if (state.zoom && isLoss) [low, high] = [values[0], values[Math.floor(0.6 * (values.length - 1))]];
  const margin = (state.zoom && isLoss ? 0.3 : 0.05) * (high - low) || 0.5 * Math.abs(high) || 0.5;
  return { low: low - margin, high: high + margin, isLog: false };
}

// Map steps and values to positions in the box; the logarithm of steps begins at the first step after 0.
function axisScales(series, axis, box) {
  const all = series.flatMap(({ trial }) => [...steps(trial)]);
  const last = Math.max(1, ...all);
  const first = Math.min(last, ...all.filter((step) => step > 0));
  const turnX = state.logSteps ? (step) => Math.log1p(step / first) : (step) => step;
  const turnY = axis.isLog ? Math.log10 : (value) => value;
  const [bottom, top] = [turnY(axis.low), turnY(axis.high)];
  return {
    last,
    x: (step) => (box.width * turnX(step)) / turnX(last),
    y: (value) => (box.height * (top - turnY(value))) / (top - bottom),
    xTicks: state.logSteps ? [0, ...decades(first, last)] : niceTicks(0, last, 4),
    yTicks: axis.isLog && axis.high > 20 * axis.low ? decades(axis.low, axis.high) : niceTicks(axis.low, axis.high, 4),
  };
}

function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
  const ticks = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-6; number += 1) {
    ticks.push(Number((number * step).toPrecision(12)));
  }
  return ticks;
}

function decades(low, high) {
  const ends = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.max(1, Math.ceil((ends[1] - ends[0] + 1) / 5));
  const ticks = [];
  for (let power = ends[0]; power <= ends[1]; power += every) ticks.push(Number(`1e${power}`));
  return ticks;
}

function contentWidth(element) {
  const { paddingLeft, paddingRight } = getComputedStyle(element);
  return Math.floor(element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
}

function key({ label, colour, dash }, isLoss) {
  const stroke = isLoss ? "#1b1f24" : colour;
  const line = draw("path", { d: "M0 6H22", stroke, "stroke-dasharray": dash, "stroke-width": 2 });
  const drawn = draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, line);
  return make("span", { class: "key" }, drawn, label);
}

// A missing value leaves a gap, and a value between two gaps is a dot.  A column that most records lack is
// measured rarely: its values are joined across the gaps.
function path(at, values, { x, y }, { isLog, low, high }) {
  const far = high + 4 * (high - low);
  const isRare = 2 * values.filter(Number.isFinite).length < values.length;
  let [text, isOpen] = ["", false];
  values.forEach((value, number) => {
    const isThere = Number.isFinite(value) && (!isLog || value > 0);
    if (isThere) {
      const inside = isLog ? Math.max(value, low / 100) : Math.max(Math.min(value, far), low - 4 * (high - low));
      const point = `${x(at[number]).toFixed(1)} ${y(inside).toFixed(1)}`;
      text += isOpen ? `L${point}` : `M${point}h.1`;
    }
    isOpen = isThere || (isOpen && isRare);
  });
  return text;
}

function tickTexts(box, { x, y, xTicks, yTicks, last }) {
  const middle = (place, below, text) =>
    draw("text", { x: box.x + place, y: box.y + box.height + below, class: "tick middle" }, text);
  const found = yTicks.map((value) =>
    draw("text", { x: box.x - 5, y: box.y + y(value) + 4, class: "tick end" }, shown(value)),
  );
  let before = -Infinity;
  for (const step of xTicks) {
    if (x(step) - before < 34 || x(last) - x(step) < 40) continue;
    before = x(step);
    found.push(middle(before, 15, String(step)));
  }
  return [...found, middle(x(last), 15, String(last)), middle(box.width / 2, 28, "step")];
}

// Names of reference losses at the right ends of their lines, moved apart where they would overlap.
function lineNames(box, y, lines) {
  let lowest = -Infinity;
  const inside = lines.filter(([, value]) => y(value) >= -1 && y(value) <= box.height + 1);
  return inside.sort((a, b) => b[1] - a[1]).map(([name, value]) => {
    lowest = Math.max(lowest + 12, box.y + y(value) + 4);
    const text = name.length > 11 ? `${name.slice(0, 10)}…` : name;
    const title = draw("title", {}, `${name}: ${shown(value, 4)}`);
    return draw("text", { x: box.x + box.width + 4, y: lowest, class: "tick" }, text, title);
  });
}

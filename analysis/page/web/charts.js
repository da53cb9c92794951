// Trajectories of a cell: one chart per Chart of the page, with labelled reference losses.
// A pointer or the arrow keys read values; a drag, + and - zoom into the steps of all charts together.

import { curve, data, draw, make, records, settings, shown, shownView, state, steps } from "./data.js";

const DRAG = 8; // pixels; a shorter drag is a click
const LONGEST = 16; // letters of a reference loss beside its line

// `groups` are the trials that decide on the ranges: those of both cells when two are compared.
export function chart({ title, curves, log, references, small }, trials, onsets, { groups, width, zoom }) {
  const looks = (trial, own) => (references ? data.classes[shownView().trials[trial]].line : own.colour);
  const seriesOf = (chosen) =>
    curves.flatMap((own) =>
      chosen.map((trial) => ({ ...own, trial, colours: looks(trial, own), values: curve(trial, own.name) })),
    );
  const series = seriesOf(trials);
  const whole = seriesOf([...new Set(groups.flat())]);
  const lines = references ? referenceLosses(trials) : [];
  const known = references ? groups.flatMap(referenceLosses).map(([, value]) => value) : [];
  const axis = log ? logRange(whole) : range(whole, known, references);
  if (!axis) return null;
  const room = Math.max(220, width) / (small ? 1.02 : 1);
  const right = Math.max(22, ...lines.map(([name]) => 10 + 6.1 * Math.min(LONGEST, name.length)));
  const box = { x: 46, y: 6, width: room - 46 - right, height: small ? 90 : 140 };
  const scale = axisScales(whole, axis, box);
  const across = (value, name) => draw("path", { d: `M0 ${scale.y(value)}H${box.width}`, class: name });
  const plot = draw("svg", { ...box, overflow: "hidden" });
  plot.append(...scale.yTicks.map((value) => across(value, "grid")));
  plot.append(...onsets.map((step) => draw("path", { d: `M${scale.x(step)} 0V${box.height}`, class: "onset" })));
  plot.append(...lines.map(([, value]) => across(value, "limit")));
  for (const { trial, name, colours, dash, values } of series) {
    const look = { style: tint(colours), "stroke-dasharray": dash, "data-line": trial, "data-curve": name };
    plot.append(draw("path", { d: path(steps(trial), values, scale, axis), class: "line tinted", ...look }));
  }
  const keys = "arrow keys read values, plus and minus zoom";
  const said = { role: "group", tabindex: "0", "aria-label": `${title} against the step; ${keys}` };
  const size = { width: room, height: box.height + 38 };
  const svg = draw("svg", { ...size, ...said, class: "plot" }, plot, draw("rect", { ...box, class: "frame" }));
  svg.append(...tickTexts(box, scale), ...lineNames(box, scale.y, lines));
  const readout = make("p", { class: "readout", role: "status" });
  follow(svg, plot, { title, box, scale, series, trials, readout, zoom });
  const unit = log ? " (log axis, only above zero)" : "";
  const named = curves.length < 2 && curves[0].label === title ? [] : curves.map((own) => key(own, references));
  const heading = make("figcaption", {}, make("b", {}, title + unit), ...named);
  return make("figure", { class: "chart" }, heading, svg, readout);
}

// The colours of a line on a light and on a dark page.
export function tint([light, dark]) {
  return `--light:${light};--dark:${dark}`;
}

function follow(svg, plot, { title, box, scale, series, trials, readout, zoom }) {
  const cursor = draw("g", { class: "cursor" });
  plot.append(cursor);
  let [trial, place, from] = [trials[0], -1, null];
  const across = (event) => event.clientX - svg.getBoundingClientRect().left - box.x;
  const stepAt = (x) => scale.step(Math.min(box.width, Math.max(0, x)));

  function read() {
    const step = steps(trial)[place];
    const own = series.filter((each) => each.trial === trial);
    const line = draw("path", { d: `M${scale.x(step)} 0V${box.height}`, class: "at" });
    const inside = own.filter(({ values }) => Number.isFinite(scale.y(values[place])));
    const dots = inside.map(({ colours, values }) => {
      const at = { cx: scale.x(step), cy: scale.y(values[place]), r: 3.5 };
      return draw("circle", { ...at, class: "tinted dot", style: tint(colours) });
    });
    cursor.replaceChildren(line, ...dots);
    const values = own.map((each) => `${each.label} ${shown(each.values[place], 4)}`);
    readout.textContent = `step ${step}: ${values.join(", ")} (${trialName(trial)})`;
  }

  function nearest(x, y) {
    let least = Infinity;
    for (const one of series) {
      const at = steps(one.trial);
      const number = nearestPlace(at, stepAt(x));
      const apart = Math.abs(scale.x(at[number]) - x) + Math.abs(scale.y(one.values[number]) - y);
      if (apart < least) [least, trial, place] = [apart, one.trial, number];
    }
  }

  svg.addEventListener("pointerdown", (event) => {
    from = across(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const x = across(event);
    if (from !== null && Math.abs(x - from) > DRAG) {
      const [left, right] = [Math.max(0, Math.min(from, x)), Math.min(box.width, Math.max(from, x))];
      cursor.replaceChildren(draw("rect", { x: left, width: right - left, height: box.height, class: "selected" }));
      readout.textContent = `steps ${Math.round(stepAt(left))} to ${Math.round(stepAt(right))}`;
      return;
    }
    nearest(x, event.clientY - svg.getBoundingClientRect().top - box.y);
    if (place >= 0) read();
  });
  svg.addEventListener("pointerup", (event) => {
    const [start, end] = [from, across(event)].map(stepAt);
    const isDrag = from !== null && Math.abs(across(event) - from) > DRAG;
    from = null;
    if (isDrag) zoom([Math.min(start, end), Math.max(start, end)]);
  });
  svg.addEventListener("pointercancel", () => (from = null));
  svg.addEventListener("pointerleave", () => {
    if (from === null && document.activeElement !== svg) cursor.replaceChildren();
  });
  svg.addEventListener("dblclick", () => zoom(null));
  svg.addEventListener("keydown", (event) => {
    const at = steps(trial);
    if (place < 0) place = nearestPlace(at, stepAt(box.width));
    const turn = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    const middle = scale.x(at[place]);
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      place = Math.min(at.length - 1, Math.max(0, place + turn));
    } else if (turn) {
      trial = trials[(trials.indexOf(trial) + turn + trials.length) % trials.length];
      place = nearestPlace(steps(trial), at[place]);
    } else if (event.key === "+" || event.key === "=") {
      zoom([middle - box.width / 4, middle + box.width / 4].map(stepAt), title);
    } else if (event.key === "-" && state.zoom) {
      const wide = [scale.step(-box.width), scale.step(2 * box.width)];
      const isAll = wide[0] <= 0 && wide[1] >= 0.98 * scale.last;
      zoom(isAll ? null : [Math.max(0, wide[0]), Math.min(scale.last, wide[1])], title);
    } else if (event.key === "Escape" && state.zoom) zoom(null, title);
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (turn) read();
  });
}

function nearestPlace(at, step) {
  let best = 0;
  at.forEach((own, number) => {
    if (Math.abs(own - step) < Math.abs(at[best] - step)) best = number;
  });
  return best;
}

function trialName(trial) {
  const seed = settings.find(({ name }) => name === "seed");
  return seed ? `seed ${seed.text(trial)}, ${data.ids[trial]}` : data.ids[trial];
}

// The mean of each reference loss over the trials.
function referenceLosses(trials) {
  const means = records.references.map(([name, values]) => {
    const own = trials.map((trial) => values[records.place.get(trial)]).filter(Number.isFinite);
    return [name, own.reduce((sum, value) => sum + value, 0) / own.length];
  });
  return means.filter(([, value]) => Number.isFinite(value));
}

// The finite values of the steps that are shown, and of their neighbours on both sides.
function finite(series) {
  const [from, to] = state.zoom ?? [-Infinity, Infinity];
  const found = series.flatMap(({ trial, values }) => {
    const at = steps(trial);
    const isNear = (_, place) => (at[place + 1] ?? Infinity) >= from && (at[place - 1] ?? -Infinity) <= to;
    return values.filter((value, place) => Number.isFinite(value) && isNear(value, place));
  });
  return found.sort((a, b) => a - b);
}

function logRange(series) {
  const sized = finite(series).filter((value) => value > 0);
  if (!sized.length) return null;
  const [low, high] = [Math.max(sized[0], sized.at(-1) * 1e-10), sized.at(-1)];
  return low < high ? { low, high: high * 1.3, isLog: true } : { low: low / 3, high: high * 3, isLog: true };
}

// The range of all values.  For losses it ends at the median initial value and includes the reference losses,
// unless the reader has chosen steps.
function range(series, lines, isLoss) {
  const values = finite(series);
  if (!values.length) return null;
  const isWhole = isLoss && !state.zoom;
  const starts = series.map((own) => own.values[0]).filter(Number.isFinite).sort((a, b) => a - b);
  const known = isWhole ? lines : [];
  const low = Math.min(values[0], ...known);
  const high = isWhole ? Math.max(starts[starts.length >> 1] ?? values.at(-1), values[0], ...known) : values.at(-1);
  const margin = 0.05 * (high - low) || 0.5 * Math.abs(high) || 0.5;
  return { low: low - margin, high: high + margin, isLog: false };
}

// Map steps and values to positions in the box; the logarithm of steps begins at the first step after 0.
function axisScales(series, axis, box) {
  const all = series.flatMap(({ trial }) => [...steps(trial)]);
  const last = all.reduce((most, step) => Math.max(most, step), 1);
  const first = all.reduce((least, step) => (step > 0 ? Math.min(least, step) : least), last);
  const [from, to] = state.zoom ?? [0, last];
  const turnX = state.logSteps ? (step) => Math.log1p(step / first) : (step) => step;
  const backX = state.logSteps ? (place) => first * Math.expm1(place) : (place) => place;
  const turnY = axis.isLog ? Math.log10 : (value) => value;
  const [bottom, top] = [turnY(axis.low), turnY(axis.high)];
  const [left, right] = [turnX(from), turnX(to)];
  const isWide = to > 8 * Math.max(first, from);
  return {
    last,
    ends: [from, to],
    x: (step) => (box.width * (turnX(step) - left)) / (right - left || 1),
    step: (x) => backX(left + (x / box.width) * (right - left)),
    y: (value) => (box.height * (top - turnY(value))) / (top - bottom),
    xTicks: state.logSteps && isWide ? [...(from ? [] : [0]), ...decades(Math.max(first, from), to)] : niceTicks(from, to, 4),
    yTicks: axis.isLog && axis.high > 20 * axis.low ? decades(axis.low, axis.high) : niceTicks(axis.low, axis.high, 4),
  };
}

export function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
  const ticks = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-6; number += 1) {
    ticks.push(Number((number * step).toPrecision(12)));
  }
  return ticks;
}

export function decades(low, high) {
  const ends = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.max(1, Math.ceil((ends[1] - ends[0] + 1) / 5));
  const ticks = [];
  for (let power = ends[0]; power <= ends[1]; power += every) ticks.push(Number(`1e${power}`));
  return ticks;
}

function key({ label, colour, dash }, isLoss) {
  const look = isLoss ? { class: "plain" } : { class: "tinted", style: tint(colour) };
  const line = draw("path", { d: "M0 6H22", "stroke-dasharray": dash, "stroke-width": 2, ...look });
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

function tickTexts(box, { x, y, xTicks, yTicks, ends }) {
  const middle = (place, below, text) =>
    draw("text", { x: box.x + place, y: box.y + box.height + below, class: "tick middle" }, text);
  const found = yTicks.map((value) =>
    draw("text", { x: box.x - 5, y: box.y + y(value) + 4, class: "tick end" }, shown(value)),
  );
  const last = Math.round(ends[1]);
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
    const text = name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name;
    const title = draw("title", {}, `${name}: ${shown(value, 4)}`);
    return draw("text", { x: box.x + box.width + 4, y: lowest, class: "tick" }, text, title);
  });
}

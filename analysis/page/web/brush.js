// Brushing: a scatter plot of any two columns, and parallel coordinates.  Both leave in the trials of a range,
// and the map follows.  Points and lines are trials, in the colours of their classes.

import { decades, niceTicks } from "./charts.js";
import { brush, cellTrials, columns, counted, data, draw, fields, isBrushed, make, parts } from "./data.js";
import { settings, shown, shownView, state } from "./data.js";
import { allCells } from "./map.js";

const CLICK = 5; // pixels; a shorter drag is a click
const MOST_AXES = 7; // of parallel coordinates
const HEIGHT = 230;

// Fields to begin with: the settings that vary, then the scores of the view.  Where there is no room for all,
// those that are brushed and the score of the view stay.
function axes(most = MOST_AXES) {
  const view = shownView();
  const score = columns[view.score]?.name;
  const names = settings.map(({ name }) => name).filter((name) => name !== "seed");
  names.push(score, ...view.onsets.map((place) => columns[place].name), ...columns.map(({ name }) => name));
  const known = [...new Set(names)].map((name) => fields.find((own) => own.name === name)).filter(Boolean);
  const first = known.filter(({ name }) => state.brushes.has(name) || name === score);
  const chosen = [...new Set([...first, ...known])].slice(0, most);
  return chosen.sort((a, b) => known.indexOf(a) - known.indexOf(b));
}

export function brushPanel(redraw) {
  parts.brush = make("details", { class: "brush" });
  parts.brush.addEventListener("toggle", () => drawBrushes(redraw));
  return parts.brush;
}

export function drawBrushes(redraw) {
  const title = make("summary", {}, "Brush over columns: scatter plot and parallel coordinates");
  if (!parts.brush.open || fields.length < 2) {
    parts.brush.replaceChildren(title);
    parts.brush.hidden = fields.length < 2;
    return;
  }
  const hint = make("p", { class: "hint" }, "Drag a box or along an axis; only cells with trials inside stay on the map.");
  const chosen = ["x", "y"].map((name, place) => pick(name, place, redraw));
  const plots = make("div", { class: "plots" });
  parts.brush.replaceChildren(title, hint, make("div", { class: "controls" }, ...chosen), plots, ranges(redraw));
  const room = plots.clientWidth;
  const isNarrow = room < 700;
  const width = isNarrow ? room : Math.floor(0.4 * room);
  plots.append(scatter(width, redraw), parallel(isNarrow ? room : room - width - 14, redraw));
}

// The fields of the scatter plot: those that were chosen, or a setting and the score of the view.
function pair() {
  if (state.pair?.every((name) => fields.some((own) => own.name === name))) return state.pair;
  const own = axes();
  const score = fields.find(({ name }) => name === columns[shownView().score]?.name) ?? own.at(-1);
  const first = own.find((each) => !each.texts && each !== score) ?? own[0];
  return [first.name, (score === first ? own.at(-1) : score).name];
}

function pick(name, place, redraw) {
  const option = (own) => make("option", { value: own.name, selected: own.name === pair()[place] }, own.label);
  const change = () => {
    for (const old of pair()) brush(old, null);
    state.pair = [...pair()];
    state.pair[place] = box.value;
    redraw();
  };
  const box = make("select", { "data-choice": `brush-${name}`, onchange: change }, ...fields.map(option));
  return make("label", { class: "axis" }, `${name} `, box);
}

// Map the values of a field to 0..1 and back.
function scaleOf({ low, high, isLog, texts }) {
  const turn = isLog ? Math.log : (value) => value;
  const back = isLog ? Math.exp : (value) => value;
  const pad = (texts ? 0.5 : 0.03 * (turn(high) - turn(low))) || 0.5;
  const [from, to] = [turn(low) - pad, turn(high) + pad];
  const ticks = texts ? texts.map((_, code) => code) : isLog && high > 20 * low ? decades(low, high) : niceTicks(low, high, 5);
  return { at: (value) => (turn(value) - from) / (to - from), value: (share) => back(from + share * (to - from)), ticks };
}

function text(field, value) {
  return field.texts ? field.texts[value] : shown(value);
}

// A canvas of the trials with the axes and the brushes drawn over it.
function sheet(width, name, paint) {
  const dense = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: width * dense, height: HEIGHT * dense, style: `width:${width}px;height:${HEIGHT}px` });
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  const isDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const isIn = data.ids.map((_, trial) => isBrushed(trial));
  const order = data.ids.map((_, trial) => trial).sort((a, b) => isIn[a] - isIn[b]);
  for (const trial of order) {
    const colours = data.classes[shownView().trials[trial]].line;
    const ink = isIn[trial] ? colours[isDark ? 1 : 0] : isDark ? "#30363d" : "#dfe3e8";
    paint(pen, trial, ink, isIn[trial]);
  }
  const over = draw("svg", { width, height: HEIGHT, class: "over", role: "img", "aria-label": name });
  return { over, element: make("div", { class: "sheet", style: `width:${width}px;height:${HEIGHT}px` }, canvas, over) };
}

function scatter(width, redraw) {
  const [fieldX, fieldY] = pair().map((name) => fields.find((own) => own.name === name));
  const [scaleX, scaleY] = [scaleOf(fieldX), scaleOf(fieldY)];
  const box = { x: 52, y: 6, width: width - 62, height: HEIGHT - 44 };
  const left = (value) => box.x + box.width * scaleX.at(value);
  const top = (value) => box.y + box.height * (1 - scaleY.at(value));
  const place = (trial) => [left(fieldX.values[trial]) + spread(trial, fieldX), top(fieldY.values[trial])];
  const name = `${fieldY.label} against ${fieldX.label}, a point for each trial`;
  const { over, element } = sheet(width, name, (pen, trial, ink) => {
    const [x, y] = place(trial);
    if (!Number.isFinite(x + y)) return;
    pen.fillStyle = ink;
    pen.fillRect(x - 1.5, y - 1.5, 3, 3);
  });
  over.append(draw("rect", { ...box, class: "frame" }));
  for (const value of apart(scaleX.ticks, left, 46)) {
    over.append(draw("text", { x: left(value), y: HEIGHT - 24, class: "tick middle" }, text(fieldX, value)));
  }
  for (const value of apart(scaleY.ticks, top, 12)) {
    over.append(draw("text", { x: box.x - 4, y: top(value) + 4, class: "tick end" }, text(fieldY, value)));
  }
  over.append(draw("text", { x: box.x + box.width / 2, y: HEIGHT - 8, class: "tick middle name" }, fieldX.label));
  const ranges = [state.brushes.get(fieldX.name), state.brushes.get(fieldY.name)];
  if (ranges[0] || ranges[1]) {
    const [x0, x1] = ranges[0]?.map(left) ?? [box.x, box.x + box.width];
    const [y1, y0] = ranges[1]?.map(top) ?? [box.y + box.height, box.y];
    over.append(draw("rect", { x: x0, y: y0, width: Math.max(1, x1 - x0), height: Math.max(1, y1 - y0), class: "selected" }));
  }
  const share = (from, to, start, size, isDown) => {
    const ends = [from, to].map((at) => Math.min(1, Math.max(0, (at - start) / size)));
    const turned = isDown ? ends.map((end) => 1 - end) : ends;
    return turned.sort((a, b) => a - b);
  };
  drag(over, (from, to, isDone) => {
    if (!isDone) return draw("rect", { ...rectangle(from, to), class: "selected" });
    brush(fieldX.name, share(from[0], to[0], box.x, box.width, false).map(scaleX.value));
    brush(fieldY.name, share(from[1], to[1], box.y, box.height, true).map(scaleY.value));
    state.pair = pair();
    redraw();
    return null;
  }, ([x, y]) => {
    const isNear = (trial) => Math.hypot(place(trial)[0] - x, place(trial)[1] - y);
    const near = data.ids.map((_, trial) => trial).filter((trial) => isNear(trial) < 8);
    if (near.length) parts.open(allCells().find((cell) => cellTrials(cell).includes(nearestOf(near, isNear))), false);
    else if (ranges[0] || ranges[1]) {
      brush(fieldX.name, null);
      brush(fieldY.name, null);
      redraw();
    }
  });
  return element;
}

function nearestOf(found, distance) {
  return found.reduce((best, one) => (distance(one) < distance(best) ? one : best));
}

// Trials with the same word stand beside one another.
function spread(trial, { texts }) {
  return texts ? ((trial * 0.618034) % 1) * 16 - 8 : 0;
}

function rectangle([x0, y0], [x1, y1]) {
  return { x: Math.min(x0, x1), y: Math.min(y0, y1), width: Math.abs(x1 - x0), height: Math.abs(y1 - y0) };
}

function apart(ticks, at, room) {
  const kept = [];
  for (const tick of ticks) if (!kept.length || Math.abs(at(tick) - at(kept.at(-1))) >= room) kept.push(tick);
  return kept;
}

function parallel(width, redraw) {
  const shownAxes = axes(Math.max(2, Math.min(MOST_AXES, Math.floor(width / 80))));
  const all = shownAxes.map(scaleOf);
  const [high, low] = [24, HEIGHT - 22];
  const margin = Math.min(90, 14 + 6 * Math.max(5, ...(shownAxes[0].texts ?? []).map((each) => each.length)));
  const gap = (width - margin - 45) / Math.max(1, shownAxes.length - 1);
  const x = (number) => margin + number * gap;
  const y = (number, value) => low - (low - high) * all[number].at(value);
  const faint = Math.min(1, Math.max(0.03, 300 / data.ids.length));
  const name = `Parallel coordinates of ${shownAxes.map(({ label }) => label).join(", ")}`;
  const { over, element } = sheet(width, name, (pen, trial, ink, isIn) => {
    pen.strokeStyle = ink;
    pen.globalAlpha = isIn ? Math.min(1, 2 * faint) : faint;
    pen.beginPath();
    let isOpen = false;
    shownAxes.forEach(({ values }, number) => {
      const value = values[trial];
      if (Number.isFinite(value)) pen[isOpen ? "lineTo" : "moveTo"](x(number), y(number, value));
      isOpen = Number.isFinite(value);
    });
    pen.stroke();
  });
  shownAxes.forEach((own, number) => {
    over.append(draw("path", { d: `M${x(number)} ${high}V${low}`, class: "coordinate" }));
    const title = draw("text", { x: x(number), y: 12, class: "tick middle" }, short(own.label, gap));
    title.append(draw("title", {}, own.label));
    over.append(title);
    for (const value of apart(all[number].ticks, (tick) => y(number, tick), 16)) {
      over.append(draw("text", { x: x(number) - 4, y: y(number, value) + 4, class: "tick end halo" }, text(own, value)));
    }
    const range = state.brushes.get(own.name);
    if (range) {
      const [bottom, top] = range.map((value) => y(number, value));
      over.append(draw("rect", { x: x(number) - 7, y: top, width: 14, height: Math.max(2, bottom - top), class: "selected" }));
    }
  });
  const nearest = ([at]) => Math.min(shownAxes.length - 1, Math.max(0, Math.round((at - margin) / gap)));
  drag(over, (from, to, isDone) => {
    const number = nearest(from);
    const ends = [from[1], to[1]].map((at) => Math.min(1, Math.max(0, (low - at) / (low - high)))).sort((a, b) => a - b);
    if (!isDone) {
      const [bottom, top] = ends.map((share) => low - (low - high) * share);
      return draw("rect", { x: x(number) - 7, y: top, width: 14, height: bottom - top, class: "selected" });
    }
    brush(shownAxes[number].name, ends.map(all[number].value));
    redraw();
    return null;
  }, (at) => {
    brush(shownAxes[nearest(at)].name, null);
    redraw();
  });
  return element;
}

function short(label, room) {
  const most = Math.max(6, Math.floor(room / 6.2));
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
}

// Call `moved(from, to, isDone)` while a pointer is dragged, and `clicked(at)` for a click.
function drag(over, moved, clicked) {
  let [from, sketch] = [null, null];
  const at = (event) => {
    const { left, top } = over.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  const isFar = (to) => Math.hypot(to[0] - from[0], to[1] - from[1]) > CLICK;
  over.addEventListener("pointerdown", (event) => {
    from = at(event);
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointermove", (event) => {
    if (!from || !isFar(at(event))) return;
    sketch?.remove();
    sketch = moved(from, at(event), false);
    over.append(sketch);
  });
  over.addEventListener("pointerup", (event) => {
    const [start, to] = [from, at(event)];
    if (!start) return;
    const isDrag = isFar(to);
    from = null;
    if (isDrag) moved(start, to, true);
    else clicked(to);
  });
  over.addEventListener("pointercancel", () => {
    from = null;
    sketch?.remove();
  });
}

// The same by keyboard: the ends of each range as numbers.
function ranges(redraw) {
  const names = [...new Set([...pair(), ...axes().map(({ name }) => name)])];
  const rows = names.map((name) => {
    const field = fields.find((own) => own.name === name);
    const range = state.brushes.get(name);
    const change = () => {
      const given = inputs.map((input, place) => (input.value === "" ? [field.low, field.high][place] : Number(input.value)));
      brush(name, inputs.some((input) => input.value !== "") ? given : null);
      redraw();
    };
    const inputs = ["from", "to"].map((end, place) => {
      const value = range ? shown(range[place], 6) : "";
      const hint = shown([field.low, field.high][place]);
      return make("input", { type: "number", step: "any", value, placeholder: hint, onchange: change, "aria-label": `${field.label} ${end}` });
    });
    return make("div", { class: "range" }, make("span", {}, field.label), inputs[0], " to ", inputs[1]);
  });
  const open = parts.rangesOpen ?? false;
  const found = make("details", { open }, make("summary", {}, `Ranges as numbers (${counted(state.brushes.size, "brushed column")})`), ...rows);
  found.addEventListener("toggle", () => (parts.rangesOpen = found.open));
  return found;
}

// The map: a panel per combination of settings, with each cell drawn as its rectangles from layouts.py.
// Also hover, focus, arrow keys and clicks.

import { cellTrials, columns, data, draw, isHidden, make, numbers, parts } from "./data.js";
import { scales, settings, shown, shownColumn, shownView, state } from "./data.js";
import { hideTip, showTip } from "./tip.js";

const MIXED = 1;
const FAILED = 2;
const HOLLOW = 4;
const REACH = 22; // a click selects a cell at most this many pixels away
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const elements = new Map(); // cell: its element; hidden cells have none
const panelOf = new Map(); // cell: the title of its panel

export function drawMap() {
  const focused = document.activeElement?.getAttribute?.("data-cell");
  const map = data.maps[state.map];
  elements.clear();
  panelOf.clear();
  const room = parts.map.clientWidth || 360;
  const drawn = map.panels.map((panel) => drawPanel(panel, map, room)).filter(Boolean);
  parts.map.classList.toggle("several", drawn.length > 1);
  const nothing = make("p", { class: "nothing" }, "No trial is left: clear some filters or brushes.");
  parts.map.replaceChildren(...(drawn.length ? drawn : [nothing]));
  const stop = elements.get(Number(focused ?? NaN)) ?? elements.get(state.open) ?? [...elements.values()][0];
  tabStop(stop);
  if (focused && elements.has(Number(focused))) stop.focus({ preventScroll: true });
  markOpen();
}

export function shownCells() {
  return [...elements.keys()];
}

export function allCells() {
  return data.maps[state.map].panels.flatMap((panel) => [...numbers(panel.cells, Uint32Array)]);
}

function drawPanel(panel, map, room) {
  const cells = [...numbers(panel.cells, Uint32Array)];
  if (cells.every(isHidden)) return null;
  const isRefined = Boolean(panel.whose);
  const [wide, high] = panel.shape;
  const left = widest(panel.texts[1]) + 28;
  const size = placeSize(panel, room, left, isRefined);
  const [width, height] = [wide * size, high * size];
  const isTurned = widest(panel.texts[0]) > size * (panel.ticks[0][1] ?? 1) - 3;
  const below = (isTurned ? 8 + 0.72 * widest(panel.texts[0]) : 18) + 16;
  const right = Math.max(width, (width + widest([map.labels[0]])) / 2) + 8;
  const inside = draw("g", { transform: `translate(${left} 3)` });
  if (isRefined) inside.append(draw("rect", { width, height, class: "frame" }));
  const found = shapes(panel, size, high, isRefined);
  const order = cells.map((_, number) => number).sort((a, b) => {
    const [one, other] = [found[a], found[b]];
    return one.y - other.y || one.x - other.x;
  });
  for (const number of order) inside.append(drawCell(cells[number], found[number], panel.title));
  const empty = numbers(panel.empty, Uint16Array);
  for (let place = 0; place < empty.length; place += 2) {
    const [cx, cy] = [(empty[place] + 0.5) * size, (high - empty[place + 1] - 0.5) * size];
    inside.append(draw("circle", { cx, cy, r: 1.5, class: "empty" }));
  }
  inside.append(...axisLabels(panel, map, { left, size, width, height, below, isTurned }));
  const attributes = { width: left + right, height: height + below + 4, role: "group" };
  const svg = draw("svg", { ...attributes, "aria-label": panel.title || "map" }, inside);
  const title = make("h4", { style: `max-width:${Math.max(left + right, 160)}px` }, panel.title);
  return make("div", { class: "panel" }, title, make("div", { class: "scroll" }, svg));
}

// Side of a place in pixels: as large as the panels in a row leave room for.
function placeSize({ shape: [wide, high] }, room, left, isRefined) {
  if (isRefined) return Math.max(1, Math.floor((10 * Math.min(420, room - left - 8)) / Math.max(wide, high)) / 10);
  const isPhone = room < 600;
  const across = isPhone ? 1 : Math.max(1, Math.min(4, data.maps[state.map].panels.length));
  const fits = [4, 3, 2, 1].filter((count) => count <= across);
  const sizeFor = (count) => Math.floor((room / count - 16 - left - 8) / wide);
  const size = sizeFor(fits.find((count) => sizeFor(count) >= 28) ?? 1);
  return isPhone ? Math.max(24, Math.min(48, size)) : Math.max(14, Math.min(40, size));
}

// Per cell, in pixels: the path of its rectangles, and the square inside it where marks are drawn.
function shapes(panel, size, high, isRefined) {
  const boxes = numbers(panel.boxes, Uint16Array);
  const whose = isRefined ? numbers(panel.whose, Uint32Array) : null;
  const squares = isRefined ? numbers(panel.squares, Float32Array) : null;
  const gap = isRefined || size < 16 ? 0 : 1;
  const found = [];
  for (let number = 0; number < boxes.length / 4; number += 1) {
    const [left, bottom, right, top] = boxes.subarray(4 * number, 4 * number + 4);
    const cell = whose ? whose[number] : number;
    found[cell] ??= { d: "" };
    const [x, y] = [left * size + gap, (high - top) * size + gap];
    found[cell].d += `M${x} ${y}H${right * size - gap}V${(high - bottom) * size - gap}H${x}z`;
    if (!squares) Object.assign(found[cell], { x: (left + 0.5) * size, y: (high - top + 0.5) * size, half: size / 2 - gap });
  }
  found.forEach((shape, cell) => {
    if (!squares) return;
    const [x, y, side] = squares.subarray(3 * cell, 3 * cell + 3);
    Object.assign(shape, { x: x * size, y: (high - y) * size, half: (side * size) / 2, isSeamless: true });
  });
  return found;
}

// The colour of a cell, and the number written into it.
function paint(cell) {
  const [view, column] = [shownView(), shownColumn()];
  if (column) {
    const value = column.cells[cell];
    const turn = column.log ? Math.log : (number) => number;
    const share = (turn(value) - turn(column.low)) / (turn(column.high) - turn(column.low));
    const place = 3 * Math.round(255 * Math.min(1, Math.max(0, share)));
    if (!Number.isFinite(value)) return { fill: "url(#no-value)", rgb: [255, 255, 255], text: "" };
    const rgb = [...scales[column.scale].subarray(place, place + 3)];
    return { fill: `rgb(${rgb.join(",")})`, rgb, text: shown(value, 2) };
  }
  const kind = view.cells[cell];
  const rgb = [...view.colours.subarray(3 * cell, 3 * cell + 3)];
  if (data.classes[kind].hatch) return { fill: `url(#hatch-${kind})`, rgb, text: "" };
  const score = view.score < 0 ? NaN : columns[view.score].cells[cell];
  const text = Number.isFinite(score) ? score.toFixed(2).replace(/^0/, "") : "";
  return { fill: `rgb(${rgb.join(",")})`, rgb, text };
}

// Black or white, whichever has more contrast: at least 4.5 to 1 on any background.
function ink(colour) {
  const [red, green, blue] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function drawCell(cell, { d, x, y, half, isSeamless }, title) {
  const { fill, rgb, text } = paint(cell);
  const kind = isSeamless ? "shape seamless" : "shape";
  const drawn = [draw("path", { class: kind, d, fill })];
  if (isHidden(cell)) return draw("g", { class: "faded", "aria-hidden": "true" }, ...drawn);
  const marks = shownColumn() ? 0 : shownView().marks[cell];
  const isHollow = marks & HOLLOW && half > 2;
  const part = half * 0.72;
  const square = { x: x - part, y: y - part, width: 2 * part, height: 2 * part };
  if (isHollow) drawn.push(draw("rect", { fill: "#fff", ...square }));
  const colour = data.classes[shownView().cells[cell]].name === "diverged" ? "#ccc" : "#000";
  for (const [mark, down] of [[MIXED, -1], [FAILED, 1]]) {
    const path = `M${x + half} ${y + down * half}h${-half * 0.55}l${half * 0.55} ${-down * half * 0.55}z`;
    if (marks & mark) drawn.push(draw("path", { d: path, fill: colour, stroke: "#fff", "stroke-width": 0.5 }));
  }
  if (text && half >= Math.max(12, 3.2 * text.length)) {
    drawn.push(draw("text", { x, y: y + 4, fill: isHollow ? "#000" : ink(rgb), class: "theta" }, text));
  } else if (isSeamless) {
    drawn.push(draw("circle", { cx: x, cy: y, r: Math.min(1.5, half / 2), fill: ink(rgb) }));
  }
  panelOf.set(cell, title);
  const attributes = { class: "cell", role: "button", tabindex: "-1", "data-cell": cell };
  const pressed = { "aria-pressed": String(cell === state.open), "aria-label": cellLabel(cell) };
  const element = draw("g", { ...attributes, ...pressed }, ...drawn);
  elements.set(cell, element);
  return element;
}

function axisLabels(panel, map, { left, size, width, height, below, isTurned }) {
  const at = (ticks) => ticks.map((tick) => (tick + 0.5) * size);
  const base = height + 13;
  const found = spaced(at(panel.ticks[0]), panel.texts[0], 12).map(([x, text]) => {
    if (!isTurned) return draw("text", { x, y: base, class: "tick middle" }, text);
    const turn = `rotate(-45 ${x + 4} ${base - 3})`;
    return draw("text", { x: x + 4, y: base - 3, class: "tick end", transform: turn }, text);
  });
  for (const [y, text] of spaced(at(panel.ticks[1]), panel.texts[1], 12)) {
    found.push(draw("text", { x: -6, y: height - y + 4, class: "tick end" }, text));
  }
  const [x, y] = [12 - left, Math.max(height / 2, widest([map.labels[1]]) / 2)]; // whole beside few rows
  const middle = { x: width / 2, y: height + below - 3, class: "tick middle name" };
  const turned = { x, y, transform: `rotate(-90 ${x} ${y})`, class: "tick middle name" };
  return [...found, draw("text", middle, map.labels[0]), draw("text", turned, map.labels[1])];
}

// Keep every second, third, ... tick if they are too close together.
function spaced(places, texts, apart) {
  const every = places.length < 2 ? 1 : Math.ceil(apart / Math.abs(places[1] - places[0]));
  return places.map((place, number) => [place, texts[number]]).filter((_, number) => number % every === 0);
}

// Width in pixels of the longest of some short texts.
function widest(texts) {
  return Math.max(0, ...texts.map((text) => text.length)) * 6.2;
}

export function placeTexts(cell) {
  const { x, y } = data.maps[state.map];
  const axes = settings.filter(({ name }) => name === x || name === y);
  axes.sort((one) => (one.name === x ? -1 : 1));
  const texts = axes.map(({ label, texts: own, cells }) => `${label} ${own[cells[cell]]}`);
  return [panelOf.get(cell), ...texts].filter(Boolean);
}

export function classBy(words) {
  return words === "class" ? "Class" : `Class by ${words}`;
}

export function classText(cell) {
  const view = shownView();
  const trials = cellTrials(cell);
  const kinds = new Map();
  for (const trial of trials) kinds.set(view.trials[trial], (kinds.get(view.trials[trial]) ?? 0) + 1);
  const own = view.cells[cell];
  const share = trials.length === 1 ? "1 trial" : `${kinds.get(own)} of ${trials.length} trials`;
  const others = [...kinds].filter(([kind]) => kind !== own);
  const more = others.map(([kind, count]) => `${count} ${data.classes[kind].name}`);
  return `${data.classes[own].name} (${[share, ...more].join("; ")})`;
}

// The median of a column over the trials of a cell, and its range.
function valueText({ label, cells, trials }, cell) {
  const own = cellTrials(cell).map((trial) => trials[trial]).filter(Number.isFinite);
  const isSpread = own.length > 1 && Number.isFinite(cells[cell]);
  const range = isSpread ? ` (${shown(Math.min(...own))} to ${shown(Math.max(...own))})` : "";
  return `${label} ${shown(cells[cell])}${range}`;
}

export function scoreTexts(cell) {
  const [view, column] = [shownView(), shownColumn()];
  const found = column ? [column] : [];
  if (view.score >= 0) found.push(columns[view.score]);
  found.push(...view.onsets.map((place) => columns[place]));
  const texts = [...new Set(found)].map((each) => valueText(each, cell));
  return view.marks[cell] & HOLLOW ? [...texts, view.hollow] : texts;
}

function cellLabel(cell) {
  const column = shownColumn() ?? columns[shownView().score];
  const value = column ? `, ${column.label} ${shown(column.cells[cell])}` : "";
  return `${placeTexts(cell).join(", ")}: ${classText(cell)}${value}`;
}

function showCellTip(cell) {
  showTip([placeTexts(cell).slice(-2).join(" · "), classText(cell), ...scoreTexts(cell)], elements.get(cell));
}

// Draw a copy of the cell on top of its neighbours, with an outline around all of its rectangles.
export function ring(cell, name) {
  parts.map.querySelector(`.${name}`)?.remove();
  const element = elements.get(cell);
  if (!element) return;
  const shape = element.querySelector(".shape");
  const line = draw("path", { d: shape.getAttribute("d"), class: "around" });
  const inside = [...element.children].map((child) => child.cloneNode(true));
  for (const child of inside) child.removeAttribute("class");
  const text = inside.find((child) => child.tagName === "text");
  text?.setAttribute("class", "theta");
  element.parentNode.append(draw("g", { class: name, "aria-hidden": "true" }, line, ...inside));
}

export function markOpen() {
  for (const [cell, element] of elements) {
    element.setAttribute("aria-pressed", String(cell === state.open || cell === state.pinned));
  }
  ring(state.open, "opened");
  ring(state.pinned, "pinned");
}

// Tab moves to one cell of the map; arrow keys move from there to the others.
function tabStop(element) {
  for (const other of parts.map.querySelectorAll(".cell[tabindex='0']")) other.setAttribute("tabindex", "-1");
  element?.setAttribute("tabindex", "0");
}

export function focusCell(cell) {
  tabStop(elements.get(cell));
  elements.get(cell)?.focus();
}

function cellAt(target) {
  const element = target.closest?.(".cell");
  return element ? Number(element.getAttribute("data-cell")) : -1;
}

function middle(element) {
  const { left, top, width, height } = element.querySelector(".shape").getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}

function nearest(candidates, distance) {
  const apart = candidates.map(distance);
  const best = Math.min(...apart);
  return Number.isFinite(best) ? candidates[apart.indexOf(best)] : null;
}

// Find the nearest cell of the panel within REACH: a finger is wider than a small cell.
function cellNear({ target, clientX, clientY }) {
  const near = [...(target.closest(".scroll")?.querySelectorAll(".cell") ?? [])];
  const found = nearest(near, (element) => {
    const [x, y] = middle(element);
    const apart = Math.hypot(x - clientX, y - clientY);
    return apart < REACH ? apart : Infinity;
  });
  return found ? cellAt(found) : -1;
}

// Find the nearest cell in a direction, if possible in the same panel.
function neighbour(from, [right, down]) {
  const [fromX, fromY] = middle(from);
  const distance = (element) => {
    const [x, y] = middle(element);
    const along = right * (x - fromX) + down * (y - fromY);
    const aside = Math.abs(right * (y - fromY)) + Math.abs(down * (x - fromX));
    return element !== from && along > 1 ? along + (aside < 3 ? 0 : 1e4 + 3 * aside) : Infinity;
  };
  const inside = [...from.closest(".panel").querySelectorAll(".cell")];
  return nearest(inside, distance) ?? nearest([...elements.values()], distance);
}

export function listen(openCell) {
  parts.map.addEventListener("keydown", (event) => {
    const cell = cellAt(event.target);
    if (cell < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const every = [...elements.values()];
    let next = null;
    if (event.key in ARROWS) next = neighbour(elements.get(cell), ARROWS[event.key]);
    else if (event.key === "Home") next = every[0];
    else if (event.key === "End") next = every.at(-1);
    else if (event.key === "Enter" || event.key === " ") openCell(cell, true);
    else if (event.key === "Escape") hideTip();
    else return;
    event.preventDefault();
    if (next) focusCell(cellAt(next));
  });
  parts.map.addEventListener("click", (event) => {
    const cell = cellAt(event.target) < 0 ? cellNear(event) : cellAt(event.target);
    if (cell >= 0) openCell(cell, false);
  });
  parts.map.addEventListener("pointerover", (event) => {
    const cell = event.pointerType === "touch" ? -1 : cellAt(event.target);
    ring(cell, "hovered");
    if (cell >= 0) showCellTip(cell);
    else hideTip();
  });
  parts.map.addEventListener("pointerleave", () => {
    hideTip();
    ring(-1, "hovered");
  });
  parts.map.addEventListener("focusin", (event) => {
    const cell = cellAt(event.target);
    ring(cell, "ring");
    if (cell >= 0 && event.target.matches(":focus-visible")) showCellTip(cell);
  });
  parts.map.addEventListener("focusout", () => {
    hideTip();
    ring(-1, "ring");
  });
}

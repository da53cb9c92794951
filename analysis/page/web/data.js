// The data that explorer.py wrote, unpacked; the reader's choices; helpers for numbers and elements.
// All text of a run enters the page as text nodes, so none of it is interpreted as HTML.

import { canUnpack, unpacked } from "./unpack.js";

export const root = document.getElementById("explorer");
if (!canUnpack) {
  const words = "This browser cannot unpack the interactive map (it has no DecompressionStream): please use a newer one.";
  root.append(make("p", {}, `${words} The figures below show the same run.`));
  throw new Error(words);
}
export const data = await unpacked(document.getElementById("explorer-data").textContent).json();
export const drawing = root.querySelector("svg"); // empty; patterns are added to it
export const parts = {}; // elements that are filled repeatedly
export const settings = data.settings.map(coded);
export const notes = Object.entries(data.notes).map(([name, column]) => [name, coded(column)]);
export const views = data.views.map((view) => ({
  ...view,
  ...unpackedAll(view, { trials: Uint8Array, cells: Uint8Array, colours: Uint8Array, marks: Uint8Array }),
}));
export const columns = data.columns.map((column) => ({
  ...column,
  ...unpackedAll(column, { trials: Float32Array, cells: Float32Array }),
}));
export const fields = [...settings.map(settingField), ...columns.map(columnField)].filter(Boolean); // to brush over
export const scales = unpackedAll(data.scales, { cividis: Uint8Array, PuOr: Uint8Array });
export const records = data.records && unpackedRecords(data.records);
export const state = {
  map: 0, // index into data.maps
  colour: data.colour, // view:NAME or column:NAME
  hidden: new Map(), // setting: codes that are filtered out
  hiddenClasses: new Set(),
  brushes: new Map(), // name of a field: the lowest and highest value that is left in
  pair: null, // the fields along x and y of the scatter plot, once chosen
  open: -1, // the cell whose trials are shown
  pinned: -1, // the cell that it is compared with
  logSteps: true,
  zoom: null, // the first and last step of the charts; null: all steps
};
const counts = numbers(data.cells.counts, Uint32Array);
const members = numbers(data.cells.trials, Uint32Array);
const firsts = starts(counts);

export function numbers(text, Kind) {
  return new Kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

function unpackedAll(packed, kinds) {
  return Object.fromEntries(Object.entries(kinds).map(([name, Kind]) => [name, numbers(packed[name], Kind)]));
}

function starts(sizes) {
  let total = 0;
  return Array.from(sizes, (size) => (total += size) - size);
}

export function plain(value) {
  return Number(value.toPrecision(7));
}

function coded(column) {
  const code = numbers(column.codes, Int32Array);
  const cells = column.cells && numbers(column.cells, Int32Array);
  return { ...column, code, cells, text: (trial) => column.texts[code[trial]] };
}

function unpackedRecords(packed) {
  const sizes = numbers(packed.counts, Uint16Array);
  const rows = [...numbers(packed.rows, Uint32Array)];
  const kinds = { codes: Uint16Array, low: Float32Array, high: Float32Array };
  const curves = Object.entries(packed.curves).map(([name, each]) => [name, unpackedAll(each, kinds)]);
  const references = packed.references.map(({ name, values }) => [name, numbers(values, Float32Array)]);
  const place = new Map(rows.map((trial, number) => [trial, number])); // index among trials with records
  const steps = numbers(packed.steps, Uint32Array);
  return { sizes, place, start: starts(sizes), steps, curves: Object.fromEntries(curves), references };
}

export function cellTrials(cell) {
  return [...members.subarray(firsts[cell], firsts[cell] + counts[cell])];
}

// The view whose classes are shown; shownColumn is the column that colours the cells, if one does.
export function shownView() {
  return views.find(({ name }) => state.colour === `view:${name}`) ?? views[0];
}

export function shownColumn() {
  return columns.find(({ name }) => state.colour === `column:${name}`);
}

// A column to brush over: its value for each trial; words stand at the places of their list.
function field(name, label, value, texts, isLog) {
  const found = data.ids.map((_, trial) => value(trial));
  const known = found.filter(Number.isFinite);
  const low = known.reduce((least, one) => Math.min(least, one), Infinity);
  const high = known.reduce((most, one) => Math.max(most, one), -Infinity);
  if (!(low < high)) return null;
  return { name, label, values: found, texts, low, high, isLog: isLog ?? (low > 0 && high > 20 * low) };
}

function settingField({ name, label, values, texts, code }) {
  if (values.every((value) => value === null || typeof value === "number")) {
    return field(name, label, (trial) => values[code[trial]] ?? NaN);
  }
  return field(name, label, (trial) => code[trial], texts, false);
}

function columnField({ name, label, trials, log }) {
  return field(name, label, (trial) => trials[trial], null, log);
}

// Leave in only the trials with values in this range; without a range, all of them.
export function brush(name, range) {
  if (range) state.brushes.set(name, range.map((end) => Number(end.toPrecision(4))));
  else state.brushes.delete(name);
  leftIn = null;
}

let leftIn = null; // per trial, whether the brushes leave it in

export function isBrushed(trial) {
  if (!leftIn) {
    const ranges = [...state.brushes].map(([name, range]) => [fields.find((own) => own.name === name), range]);
    const isIn = (one) => ranges.every(([{ values }, [low, high]]) => values[one] >= low && values[one] <= high);
    leftIn = Uint8Array.from(data.ids, (_, one) => isIn(one));
  }
  return leftIn[trial] === 1;
}

// The trials of a cell that brushes leave in.
export function shownTrials(cell) {
  return state.brushes.size ? cellTrials(cell).filter(isBrushed) : cellTrials(cell);
}

export function isHidden(cell) {
  return (
    state.hiddenClasses.has(shownView().cells[cell]) ||
    settings.some(({ name, cells }) => state.hidden.get(name)?.has(cells[cell])) ||
    (state.brushes.size > 0 && !cellTrials(cell).some(isBrushed))
  );
}

// Decode one column of one trial: each code is a sign and a logarithm on the scale of the series.
export function curve(trial, name) {
  const number = records.place.get(trial);
  const { codes, low, high } = records.curves[name];
  const from = records.start[number];
  const scale = (high[number] - low[number]) / 32766;
  return Array.from(codes.subarray(from, from + records.sizes[number]), (code) => {
    if (code === 0x8000) return NaN;
    const level = code & 0x7fff;
    if (level === 0) return 0;
    return (code & 0x8000 ? -1 : 1) * Math.exp(low[number] + (level - 1) * scale);
  });
}

export function steps(trial) {
  const number = records.place.get(trial);
  return records.steps.subarray(records.start[number], records.start[number] + records.sizes[number]);
}

export function shown(value, digits = 3) {
  if (!Number.isFinite(value)) return "-";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(value.toPrecision(digits)));
}

export function counted(count, thing) {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(drawing.namespaceURI, tag), attributes, children);
}

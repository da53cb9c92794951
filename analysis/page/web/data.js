// What the page knows of a run: the columns that explorer.py packed; numbers as text; how elements are made.
// All text of a run enters the page as text nodes.

const root = document.getElementById("explorer");
const data = JSON.parse(document.getElementById("explorer-data").textContent);
const SVG = root.querySelector("svg").namespaceURI;
const VIEWS = { loss: "loss", order: "order parameters", norm: "norms" };
const SCORES = ["theta", "log_lag", "onset_v", "onset_attention"];

function numbers(text, Kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
  return new Kind(bytes.buffer);
}

function plain(value) {
  return Number(value.toPrecision(7));
}

function coded(column) {
  const code = numbers(column.codes, column.bytes === 2 ? Uint16Array : Uint32Array);
  const isPacked = typeof column.values === "string";
  const values = isPacked ? Array.from(numbers(column.values, Float32Array), plain) : column.values;
  const texts = column.texts ?? values.map((value) => shown(value, 4));
  return { ...column, code, values, texts, text: (trial) => texts[code[trial]] };
}

const settings = data.settings.map(coded);
const byName = new Map(settings.map((setting) => [setting.name, setting]));
const suffix = coded(data.suffix);
const notes = Object.entries(data.notes).map(([name, column]) => [name, coded(column)]);
const topical = numbers(data.topical, Uint8Array);
const views = {};
for (const [view, packed] of Object.entries(data.views)) {
  views[view] = { class: numbers(packed.class, Uint8Array) };
  for (const name of SCORES) views[view][name] = numbers(packed[name], Float32Array);
}
const records = data.records && unpackedRecords(data.records);

function unpackedRecords(packed) {
  const counts = numbers(packed.counts, Uint16Array);
  const place = new Map(); // trial: its place among those with records
  const start = [];
  let total = 0;
  numbers(packed.rows, Uint32Array).forEach((trial, number) => {
    place.set(trial, number);
    start.push(total);
    total += counts[number];
  });
  const curves = {};
  for (const [name, { codes, low, high }] of Object.entries(packed.curves)) {
    curves[name] = {
      codes: numbers(codes, Uint16Array),
      low: numbers(low, Float32Array),
      high: numbers(high, Float32Array),
    };
  }
  const lines = {};
  for (const [name, text] of Object.entries(packed.lines)) lines[name] = numbers(text, Float32Array);
  return { counts, place, start, curves, lines, steps: numbers(packed.steps, Uint32Array) };
}

// The values of one column of one trial: a sign and a logarithm between the ends of the series.
function curve(trial, name) {
  const number = records.place.get(trial);
  const { codes, low, high } = records.curves[name];
  const from = records.start[number];
  const scale = (high[number] - low[number]) / 32766;
  return Array.from(codes.subarray(from, from + records.counts[number]), (code) => {
    if (code === 0x8000) return NaN;
    const level = code & 0x7fff;
    if (level === 0) return 0;
    return (code & 0x8000 ? -1 : 1) * Math.exp(low[number] + (level - 1) * scale);
  });
}

function steps(trial) {
  const number = records.place.get(trial);
  return records.steps.subarray(records.start[number], records.start[number] + records.counts[number]);
}

function shown(value, digits = 3) {
  if (!Number.isFinite(value)) return "-";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(value.toPrecision(digits)));
}

function counted(count, thing) {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}

function settingText(setting, code) {
  const text = setting.texts[code];
  return data.main.includes(setting.name) ? text : `${setting.label} ${text}`;
}

function theta(value) {
  return Number.isFinite(value) ? value.toFixed(2) : "-";
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

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

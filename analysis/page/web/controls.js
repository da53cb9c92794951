// Controls of the map: colours, axes, search, filters, counts, and the selection as a file.

import { cellOf } from "./address.js";
import { brush, columns, counted, data, draw, drawing, isHidden, make, notes, parts } from "./data.js";
import { plain, scales, settings, shown, shownColumn, shownTrials, shownView, state, views } from "./data.js";
import { allCells, classBy, shownCells } from "./map.js";

const MOST_CHIPS = 12; // settings with more values have no filter
const SEEDS = ["seed", "init_seed"]; // a cell holds all of them

export function chip(text, checked, change, ...before) {
  const box = make("input", { type: "checkbox", checked, onchange: () => change(box.checked) });
  return make("label", { class: "chip" }, box, ...before, make("span", {}, text));
}

// A drop-down list of options in groups: [[group, [[value, text], ...]], ...].
function select(name, label, groups, value, change) {
  const made = groups.filter(([, options]) => options.length).map(([group, options]) => {
    const own = options.map(([key, text]) => make("option", { value: key, selected: key === value }, text));
    return group ? make("optgroup", { label: group }, ...own) : own;
  });
  const box = make("select", { "data-choice": name, onchange: () => change(box.value) }, ...made.flat());
  return make("label", { class: "axis" }, label, box);
}

export function choices(redraw) {
  const inGroup = (wanted) =>
    columns.filter(({ group }) => group === wanted).map(({ name, label }) => [`column:${name}`, label]);
  const classes = views.map(({ name }) => [`view:${name}`, name]);
  const groups = [["class by", classes], ["score", inGroup("scores")], ["at the end", inGroup("final values")]];
  const colour = select("colour", "colour ", groups, state.colour, (value) => {
    state.colour = value;
    state.hiddenClasses.clear();
    redraw();
  });
  const pairs = [["", data.maps.map(({ name }, place) => [String(place), name])]];
  const axes = select("axes", "axes ", pairs, String(state.map), (value) => {
    state.map = Number(value);
    redraw();
  });
  axes.hidden = data.maps.length < 2;
  return [colour, axes];
}

// A box that opens the cell of a trial, given its id or the beginning of it.
export function search(openCell) {
  const find = () => {
    const text = box.value.trim();
    const ids = data.ids.filter((id) => id.startsWith(text));
    const cell = text && ids.length === 1 ? cellOf(ids[0]) : -1;
    if (!text) said.textContent = "";
    else if (ids.length !== 1) said.textContent = `${ids.length ? ids.length.toLocaleString("en") : "No"} trial ids start with this`;
    else if (cell < 0) said.textContent = "Its cell is not on this map";
    else if (isHidden(cell)) said.textContent = "Its cell is filtered out";
    else {
      said.textContent = "";
      openCell(cell, false, ids[0]);
    }
  };
  const box = make("input", { type: "search", "data-choice": "trial", placeholder: "trial id", size: 12, spellcheck: "false", oninput: find });
  const said = make("span", { class: "hint", role: "status" });
  return make("label", { class: "axis" }, "find ", box, said);
}

function toggle(set, member, isIn) {
  if (isIn) set.add(member);
  else set.delete(member);
}

export function settingFilters(redraw) {
  const several = settings.filter(({ name, texts, cells }) => {
    const found = new Set(allCells().map((cell) => cells[cell]));
    return !SEEDS.includes(name) && texts.length <= MOST_CHIPS && found.size > 1;
  });
  const sets = several.map(({ name, label, texts }) => {
    if (!state.hidden.has(name)) state.hidden.set(name, new Set());
    const hidden = state.hidden.get(name);
    const chips = texts.map((text, code) =>
      chip(text, !hidden.has(code), (checked) => {
        toggle(hidden, code, !checked);
        redraw();
      }),
    );
    return make("fieldset", { "data-setting": name }, make("legend", {}, label), ...chips);
  });
  parts.filters.hidden = !sets.length;
  const summary = make("summary", {}, "Filter by setting (untick to hide)");
  parts.filters.replaceChildren(summary, make("div", { class: "controls" }, ...sets));
}

export function clearFilters() {
  state.hidden.clear();
  state.hiddenClasses.clear();
  for (const name of [...state.brushes.keys()]) brush(name, null);
}

// Explain the colours: a chip per class that occurs, which can hide it, and a colour bar for a column.
export function legend(redraw) {
  const counts = new Map();
  for (const cell of allCells()) {
    const kind = shownView().cells[cell];
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
  }
  const found = data.classes.map((look, kind) => [look, kind]).filter(([, kind]) => counts.has(kind));
  const chips = found.map(([look, kind]) => {
    const fill = look.hatch ? `url(#hatch-${kind})` : look.colour;
    const square = draw("rect", { width: 16, height: 16, fill });
    const swatch = draw("svg", { width: 16, height: 16, class: "swatch", "aria-hidden": "true" }, square);
    const change = (checked) => {
      toggle(state.hiddenClasses, kind, !checked);
      redraw();
    };
    const made = chip(look.name, !state.hiddenClasses.has(kind), change, swatch);
    if (look.word) {
      made.lastChild.classList.add("term");
      made.lastChild.setAttribute("aria-describedby", look.word);
    }
    made.append(make("span", { class: "number" }, String(counts.get(kind))));
    return made;
  });
  const text = `${classBy(shownView().words)}: number of cells (untick to hide)`;
  const classes = make("fieldset", { class: "classes" }, make("legend", {}, text), ...chips);
  parts.legend.replaceChildren(...(shownColumn() ? [colourBar(shownColumn())] : []), classes);
}

function colourBar({ label, low, high, log, scale }) {
  const stops = Array.from({ length: 9 }, (_, number) => {
    const place = 3 * Math.round((255 * number) / 8);
    return `rgb(${[...scales[scale].subarray(place, place + 3)].join(",")})`;
  });
  const bar = make("span", { class: "bar", style: `background:linear-gradient(90deg,${stops.join(",")})` });
  const name = make("legend", {}, `Colour: ${label}${log ? ", logarithmic" : ""}; hatched: no value`);
  return make("fieldset", { class: "classes" }, name, shown(low), bar, shown(high));
}

export function describe() {
  const cells = shownCells();
  const trials = cells.reduce((sum, cell) => sum + shownTrials(cell).length, 0);
  const all = data.ids.length.toLocaleString("en");
  const { remarks } = data.maps[state.map];
  parts.count.textContent = `${counted(cells.length, "cell")} with ${counted(trials, "trial")} of ${all}`;
  parts.remarks.textContent = [shownColumn() ? "" : shownView().hint, remarks, data.sentence].join(" ");
  parts.download.textContent = `Download ${counted(trials, "trial")} as CSV`;
  parts.download.disabled = !trials;
  parts.reset.disabled = !allCells().some(isHidden);
}

// Add the patterns of hatched classes and of cells without a value.
export function addPatterns() {
  const pattern = (id, colour, d, stroke) =>
    draw(
      "pattern",
      { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      draw("rect", { width: 8, height: 8, fill: colour }),
      draw("path", { d, stroke, fill: "none" }),
    );
  const hatched = data.classes.map((look, kind) => [look, kind]).filter(([look]) => look.hatch);
  const made = hatched.map(([{ colour, hatch, ink }, kind]) => pattern(`hatch-${kind}`, colour, hatch, ink));
  made.push(pattern("no-value", "#fff", "M-2 2L2 -2M0 8L8 0M6 10L10 6", "#b3b3b3"));
  drawing.append(draw("defs", {}, ...made));
}

function csv(trials) {
  const quoted = (value) => {
    const text = value === null || Number.isNaN(value) ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const found = [["trial_id", (trial) => data.ids[trial]]];
  const codedColumns = [...settings.map((setting) => [setting.name, setting]), ...notes];
  for (const [name, { values, code }] of codedColumns) found.push([name, (trial) => values[code[trial]]]);
  for (const view of views) {
    if (!found.some(([name]) => name === view.column)) {
      found.push([view.column, (trial) => data.classes[view.trials[trial]].name]);
    }
  }
  for (const { name, trials: values } of columns) found.push([name, (trial) => plain(values[trial])]);
  const rows = trials.map((trial) => found.map(([, value]) => quoted(value(trial))).join(","));
  return `${[found.map(([name]) => quoted(name)).join(","), ...rows].join("\r\n")}\r\n`;
}

export function download() {
  const trials = shownCells().flatMap(shownTrials).sort((a, b) => a - b);
  const file = new Blob([csv(trials)], { type: "text/csv" });
  const link = make("a", { href: URL.createObjectURL(file), download: `${data.name}-selection.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The trials of the chosen cell, and of the one it is compared with: classes, charts, matrices, ids to copy.

import { saveView } from "./address.js";
import { chart } from "./charts.js";
import { chip } from "./controls.js";
import { cellTrials, columns, counted, curve, data, isHidden, make, notes, parts, records } from "./data.js";
import { settings, shown, shownView, state, steps, views } from "./data.js";
import { hasMatrices, matrices } from "./inside.js";
import { allCells, classBy, classText, focusCell, markOpen, placeTexts, scoreTexts, shownCells } from "./map.js";
import { hideTip } from "./tip.js";

const MOST_TRIALS = 24; // of a cell, both as curves and in the list
const inspected = new Map(); // cell: the trial whose matrices are shown

export function openCell(cell, byKeyboard, id = "") {
  state.open = cell;
  if (id) inspected.set(cell, data.ids.indexOf(id));
  markOpen();
  drawDetails();
  hideTip();
  saveView();
  const title = parts.detail.querySelector("h3");
  const isBeside = parts.detail.offsetLeft > parts.map.offsetLeft + 100;
  if (byKeyboard) title.focus({ preventScroll: isBeside });
  const found = id && parts.detail.querySelector(`[data-trial="${id}"]`);
  for (const item of parts.detail.querySelectorAll(".found")) item.classList.remove("found");
  if (found) {
    found.classList.add("found");
    found.scrollIntoView({ block: "nearest" });
  } else if (!isBeside) title.scrollIntoView({ block: "start" });
}

export function drawDetails() {
  const isPinned = allCells().includes(state.pinned);
  parts.sides.classList.toggle("compared", isPinned);
  parts.pinned.hidden = !isPinned;
  const both = [state.open, ...(isPinned ? [state.pinned] : [])].filter((cell) => shownCells().includes(cell));
  const groups = both.map(charted);
  drawDetail(parts.detail, state.open, groups);
  if (isPinned) drawDetail(parts.pinned, state.pinned, groups);
  else parts.pinned.replaceChildren();
}

function drawDetail(place, cell, groups) {
  if (!shownCells().includes(cell)) {
    const isFiltered = allCells().includes(cell) && isHidden(cell);
    const words = isFiltered ? "The filters hide this cell." : "Choose a cell of the map to see its trials.";
    const compared = state.pinned >= 0 && cell < 0 ? "Choose a second cell, to compare it with the pinned one." : "";
    const empty = shownCells().length ? compared || words : "No trial is left: clear some filters or brushes.";
    const unpinned = place === parts.pinned ? [unpin()] : [];
    place.replaceChildren(make("p", { class: "hint" }, empty), ...unpinned);
    return;
  }
  const verdict = `${classBy(shownView().name)}: ${classText(cell)}`;
  const isPinned = place === parts.pinned;
  const pinning = make("button", { type: "button", onclick: () => pin(cell) }, "Pin, to compare with another cell");
  const back = make("button", { type: "button", onclick: backToMap }, "Back to the map");
  place.replaceChildren(
    make("h3", { tabindex: "-1" }, (isPinned ? "Pinned: " : "") + placeTexts(cell).join(" · ")),
    make("p", {}, `${[verdict, ...scoreTexts(cell)].join("; ")}.`),
    make("p", { class: "tools" }, isPinned ? unpin() : pinning),
    ...charts(place, cell, groups),
    ...inside(place, cell),
    trialList(place, cellTrials(cell)),
    make("p", { class: "tools" }, back),
  );
}

function pin(cell) {
  [state.pinned, state.open] = [cell, -1];
  drawDetails();
  markOpen();
  saveView();
  if (parts.detail.offsetLeft <= parts.map.offsetLeft + 100) parts.map.scrollIntoView({ block: "start" });
  focusCell(cell);
}

function unpin() {
  const free = () => {
    if (state.open < 0) state.open = state.pinned;
    state.pinned = -1;
    drawDetails();
    markOpen();
    saveView();
  };
  return make("button", { type: "button", onclick: free }, "Unpin");
}

export function backToMap() {
  focusCell(state.open);
}

// The trials of a cell that have curves.
function charted(cell) {
  return cellTrials(cell).filter((trial) => records?.place.has(trial)).slice(0, MOST_TRIALS);
}

function charts(place, cell, groups) {
  const trials = charted(cell);
  if (!trials.length) return [make("p", { class: "hint" }, data.sentence || "These trials have no records.")];
  const logarithmic = chip("steps on a log axis", state.logSteps, (checked) => {
    state.logSteps = checked;
    drawDetails();
    saveView();
  });
  const zoom = (range, title = "") => {
    if (range && range[1] - range[0] < 1) return;
    state.zoom = range;
    drawDetails();
    saveView();
    if (title) [...place.querySelectorAll("svg.plot")].find((svg) => svg.ariaLabel.startsWith(`${title} against`))?.focus();
  };
  const whole = make("button", { type: "button", onclick: () => zoom(null) }, "All steps");
  const hint = make("span", { class: "hint" }, "drag to zoom into steps");
  const { paddingLeft, paddingRight } = getComputedStyle(place);
  const width = Math.floor(place.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
  const onsets = shownView().onsets.map((number) => columns[number].cells[cell]).filter(Number.isFinite);
  const made = data.charts.map((each) => chart(each, trials, onsets, { groups, width, zoom })).filter(Boolean);
  const tools = make("div", { class: "tools" }, logarithmic, state.zoom ? whole : hint);
  return [tools, make("div", { class: "charts" }, ...made)];
}

// Matrices of one trial of the cell, at first of the one that stands for it.
function inside(place, cell) {
  const trials = cellTrials(cell).filter(hasMatrices);
  if (!trials.length) {
    const remark = charted(cell).length ? data.inside?.remark : ""; // without curves the whole sentence is there
    return remark ? [make("p", { class: "hint" }, remark)] : [];
  }
  const size = (trial) => data.inside.trials[trial].length;
  const standing = trials.reduce((best, trial) => (size(trial) > size(best) ? trial : best));
  const chosen = trials.includes(inspected.get(cell)) ? inspected.get(cell) : standing;
  const seed = settings.find(({ name }) => name === "seed");
  const isAlone = size(standing) > Math.min(...trials.map(size));
  const option = (trial) => {
    const named = seed ? `seed ${seed.text(trial)}` : data.ids[trial];
    const all = isAlone && trial === standing ? ", with all matrices" : "";
    return make("option", { value: trial, selected: trial === chosen }, named + all);
  };
  const change = () => {
    inspected.set(cell, Number(select.value));
    const [title, drawn] = inside(place, cell);
    place.querySelector(".inside").replaceWith(title);
    place.querySelector(".matrices").replaceWith(drawn);
    title.querySelector("select").focus();
  };
  const select = make("select", { "data-choice": "inside", onchange: change }, ...trials.map(option));
  const title = make("h4", { class: "inside" }, "Inside the trained model", make("label", { class: "axis" }, "trial ", select));
  return [title, matrices(chosen, Math.max(220, place.clientWidth - 28))];
}

function trialList(place, trials) {
  const varies = ({ code }) => trials.some((trial) => code[trial] !== code[trials[0]]);
  const named = settings.filter((setting) => setting.name === "seed" || varies(setting));
  const items = trials.slice(0, MOST_TRIALS).map((trial) => trialItem(place, trial, named));
  const rest = trials.length - items.length;
  if (rest > 0) items.push(make("li", {}, `and ${counted(rest, "more trial")}, in the CSV file`));
  return make("ol", { class: "trials", "aria-label": "Trials of the cell" }, ...items);
}

function trialItem(place, trial, named) {
  const id = data.ids[trial];
  const classes = views.map((view) => {
    const score = columns[view.score];
    const value = score ? `, ${score.label.split(" (")[0]} ${shown(score.trials[trial])}` : "";
    return `${view.name}: ${data.classes[view.trials[trial]].name}${value}`;
  });
  const told = notes
    .filter(([, column]) => !["ok", ""].includes(column.text(trial)))
    .map(([name, column]) => `${name.replaceAll("_", " ")} ${column.text(trial)}`);
  const ends = records?.place.has(trial) ? [`at the end: ${endText(trial)}`] : [];
  const lines = [classes.join(" · "), [...told, ...ends].join(" · ")];
  const { colour } = data.classes[shownView().trials[trial]];
  const square = make("span", { class: "swatch", style: `background:${colour}` });
  const title = make("b", {}, [id, ...named.map(({ label, text }) => `${label} ${text(trial)}`)].join(" · "));
  const bold = (on) => () => mark(place, trial, on);
  return make(
    "li",
    { onpointerenter: bold(true), onpointerleave: bold(false), "data-trial": id },
    make("div", {}, square, title),
    ...lines.filter(Boolean).map((line) => make("div", {}, line)),
    copyButton("Copy id", id),
    copyButton("Copy inspect command", `topicjax inspect ${quoted(folder())} ${id}`),
  );
}

function endText(trial) {
  const first = data.charts.slice(0, 4).map(({ curves }) => curves[0]);
  const texts = first.map(({ name, label }) => `${label} ${shown(curve(trial, name).at(-1))}`);
  return `${texts.join(", ")} (step ${steps(trial).at(-1)})`;
}

function mark(place, trial, on) {
  place.classList.toggle("picked", on);
  for (const line of place.querySelectorAll(`[data-line="${trial}"]`)) line.classList.toggle("bold", on);
}

function folder() {
  if (location.protocol !== "file:") return data.name;
  const path = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "");
  return path.replace(/^\/([A-Za-z]:)/, "$1") || "/";
}

function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function copyButton(text, content) {
  const press = async () => {
    const done = await copied(content);
    parts.status.textContent = done ? `Copied: ${content}` : `Copy manually: ${content}`;
    button.textContent = done ? "Copied" : content;
    setTimeout(() => {
      button.textContent = text;
    }, 2000);
  };
  const button = make("button", { type: "button", onclick: press, "data-copy": content }, text);
  return button;
}

async function copied(content) {
  try {
    await navigator.clipboard.writeText(content);
    return true;
  } catch {
    const area = make("textarea", { readonly: true, style: "position:fixed;opacity:0" });
    area.value = content;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

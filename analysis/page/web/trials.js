// The trials of the chosen cell: classes, charts, and buttons to copy ids and commands.

import { chart } from "./charts.js";
import { chip } from "./controls.js";
import { cellTrials, columns, counted, curve, data, make, notes, parts, records } from "./data.js";
import { settings, shown, shownView, state, steps, views } from "./data.js";
import { classText, focusCell, hideTip, markOpen, placeTexts, scoreTexts, shownCells } from "./map.js";

const MOST_TRIALS = 24; // of a cell, both as curves and in the list

export function openCell(cell, byKeyboard) {
  state.open = cell;
  markOpen();
  drawDetail();
  hideTip();
  const title = parts.detail.querySelector("h3");
  const isBeside = parts.detail.offsetLeft > parts.map.offsetLeft + 100;
  if (byKeyboard) title.focus({ preventScroll: isBeside });
  if (!isBeside) title.scrollIntoView({ block: "start" });
}

export function drawDetail() {
  const cell = state.open;
  if (!shownCells().includes(cell)) {
    parts.detail.replaceChildren(make("p", { class: "hint" }, "Choose a cell to see its trials."));
    return;
  }
  const verdict = `Class by ${shownView().name}: ${classText(cell)}`;
  parts.detail.replaceChildren(
    make("h3", { tabindex: "-1" }, placeTexts(cell).join(" · ")),
    make("p", {}, `${[verdict, ...scoreTexts(cell)].join("; ")}.`),
    ...charts(cell),
    trialList(cellTrials(cell)),
    make("p", { class: "tools" }, make("button", { type: "button", onclick: backToMap }, "Back to the map")),
  );
}

export function backToMap() {
  focusCell(state.open);
}

function charts(cell) {
  const trials = cellTrials(cell).filter((trial) => records?.place.has(trial)).slice(0, MOST_TRIALS);
  if (!trials.length) return [make("p", { class: "hint" }, data.sentence || "These trials have no records.")];
  const option = (text, name) =>
    chip(text, state[name], (checked) => {
      state[name] = checked;
      drawDetail();
    });
  const options = [option("steps on a log axis", "logSteps"), option("enlarge the plateau", "zoom")];
  const onsets = shownView().onsets.map((place) => columns[place].cells[cell]).filter(Number.isFinite);
  const made = data.charts.map((each) => chart(each, trials, onsets)).filter(Boolean);
  return [make("div", { class: "tools" }, ...options), make("div", { class: "charts" }, ...made)];
}

function trialList(trials) {
  const varies = ({ code }) => trials.some((trial) => code[trial] !== code[trials[0]]);
  const named = settings.filter((setting) => setting.name === "seed" || varies(setting));
  const items = trials.slice(0, MOST_TRIALS).map((trial) => trialItem(trial, named));
  const rest = trials.length - items.length;
  if (rest > 0) items.push(make("li", {}, `and ${counted(rest, "more trial")}, in the CSV file`));
  return make("ol", { class: "trials", "aria-label": "Trials of the cell" }, ...items);
}

function trialItem(trial, named) {
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
  const bold = (on) => () => mark(trial, on);
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

function mark(trial, on) {
  parts.detail.classList.toggle("picked", on);
  for (const line of parts.detail.querySelectorAll(`[data-line="${trial}"]`)) line.classList.toggle("bold", on);
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

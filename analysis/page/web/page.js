// Entry point: build the parts of the page, take the view from its address, and open a cell.

import { restoreView, saveView } from "./address.js";
import { brushPanel, drawBrushes } from "./brush.js";
import { addPatterns, choices, clearFilters, describe, download, legend, search, settingFilters } from "./controls.js";
import { data, make, parts, root, state } from "./data.js";
import { allCells, drawMap, focusCell, listen, shownCells } from "./map.js";
import { hideTip } from "./tip.js";
import { backToMap, drawDetails, openCell } from "./trials.js";

// What is built anew keeps the reader's place: the control that has the focus has it again.
function redraw() {
  const controls = () => [...root.querySelectorAll("input, select")];
  const place = controls().indexOf(document.activeElement);
  drawAll();
  saveView();
  if (place >= 0 && document.activeElement === document.body) controls()[place]?.focus({ preventScroll: true });
}

function drawAll() {
  settingFilters(redraw);
  legend(redraw);
  drawMap();
  describe();
  drawDetails();
  drawBrushes(redraw);
}

function reset() {
  clearFilters();
  redraw();
  focusCell(shownCells()[0]);
}

function build() {
  parts.map = make("div", { class: "map" });
  parts.detail = make("div", { class: "detail", role: "region", "aria-label": "Trials of the chosen cell" });
  parts.pinned = make("div", { class: "detail", role: "region", "aria-label": "Trials of the pinned cell" });
  parts.count = make("p", { class: "count", role: "status" });
  parts.remarks = make("p", { class: "hint" });
  parts.status = make("p", { class: "quiet", role: "status" });
  parts.legend = make("div", { class: "controls" });
  parts.controls = make("div", { class: "controls choices" });
  parts.filters = make("details", { class: "filters" });
  parts.download = make("button", { type: "button", onclick: download });
  parts.reset = make("button", { type: "button", onclick: reset }, "Clear filters");
  parts.open = openCell;
  const hint =
    "A cell holds the trials that differ only in the seed. Hover over it or move to it with the arrow keys for its " +
    "numbers; click, tap or press Enter for its trials. The address of this page keeps what you choose.";
  const tools = make("div", { class: "tools" }, parts.download, parts.reset, parts.count);
  const below = [parts.legend, tools, brushPanel(redraw), parts.filters, make("p", { class: "hint" }, hint), parts.remarks];
  parts.sides = make("div", { class: "sides" }, make("div", {}, parts.map, ...below), parts.detail, parts.pinned);
  root.append(parts.controls, parts.sides, parts.status);
}

function start() {
  addPatterns();
  build();
  const isRestored = restoreView();
  if (!isRestored && window.innerWidth >= 1000 && allCells().includes(data.open)) state.open = data.open;
  brushPanelOpens();
  fillControls();
  drawAll();
  listen(openCell);
  for (const place of [parts.detail, parts.pinned]) {
    place.addEventListener("keydown", (event) => {
      if (event.key === "Escape") backToMap();
    });
  }
  window.addEventListener("hashchange", () => {
    if (!restoreView()) return;
    fillControls();
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawBrushes(redraw));
  window.addEventListener("scroll", hideTip, { passive: true });
  let [width, waiting] = [window.innerWidth, 0];
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });
  root.dataset.ready = String(Math.round(performance.now()));
}

function brushPanelOpens() {
  parts.brush.open = state.brushes.size > 0 || state.pair !== null;
}

function fillControls() {
  parts.controls.replaceChildren(...choices(redraw), search(openCell));
}

start();

// Entry point: build the parts of the page and open the first cell.

import { addPatterns, choices, describe, download, legend, settingFilters } from "./controls.js";
import { data, make, parts, root, state } from "./data.js";
import { allCells, drawMap, focusCell, listen, shownCells } from "./map.js";
import { backToMap, drawDetail, openCell } from "./trials.js";

function redraw() {
  settingFilters(redraw);
  legend(redraw);
  drawMap();
  describe();
  drawDetail();
}

function reset() {
  state.hidden.clear();
  state.hiddenClasses.clear();
  redraw();
  focusCell(shownCells()[0]);
}

function build() {
  parts.map = make("div", { class: "map" });
  parts.detail = make("div", { class: "detail", role: "region", "aria-label": "Trials of the chosen cell" });
  parts.count = make("p", { class: "count", role: "status" });
  parts.remarks = make("p", { class: "hint" });
  parts.status = make("p", { class: "quiet", role: "status" });
  parts.legend = make("div", { class: "controls" });
  parts.filters = make("details", { class: "filters", open: window.innerWidth >= 1000 });
  parts.tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  parts.download = make("button", { type: "button", onclick: download });
  parts.reset = make("button", { type: "button", onclick: reset }, "Clear filters");
  const hint =
    "Hover over a cell or move to it with the arrow keys for its numbers; click, tap or press Enter for its " +
    "trials. A cell holds the trials that differ only in the seed.";
  root.append(
    make("h3", { class: "title" }, "Interactive map"),
    make("p", { class: "hint" }, hint),
    make("div", { class: "controls" }, choices(redraw), parts.filters),
    parts.legend,
    make("div", { class: "tools" }, parts.download, parts.reset, parts.count),
    make("div", { class: "sides" }, make("div", {}, parts.map, parts.remarks), parts.detail),
    parts.status,
    parts.tip,
  );
}

function start() {
  addPatterns();
  build();
  if (window.innerWidth >= 1000 && allCells().includes(data.open)) state.open = data.open;
  redraw();
  listen(openCell);
  parts.detail.addEventListener("keydown", (event) => {
    if (event.key === "Escape") backToMap();
  });
  let [width, waiting] = [window.innerWidth, 0];
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });
  root.dataset.ready = String(Math.round(performance.now()));
}

start();

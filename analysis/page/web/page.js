// The page: its parts put together, and its first cell opened.

function build() {
  parts.map = make("div", { class: "map" });
  parts.detail = make("div", { class: "detail", role: "region", "aria-label": "Trials of the chosen cell" });
  parts.count = make("p", { class: "count", role: "status" });
  parts.remarks = make("p", { class: "hint" });
  parts.status = make("p", { class: "quiet", role: "status" });
  parts.classes = make("fieldset", { class: "classes" });
  parts.filters = make("div", { class: "filters" });
  parts.tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  parts.download = make("button", { type: "button", onclick: download });
  parts.reset = make("button", { type: "button", onclick: reset }, "Clear filters");
  const axes = make("fieldset", { hidden: !settings.length }, make("legend", {}, "Axes"));
  if (settings.length > 0) axes.append(axisChoice("x", "across "));
  if (settings.length > 1) axes.append(axisChoice("y", "up "));
  const hint =
    "Hover over a cell or move to it by arrow keys for its numbers; click, tap or press Enter for its " +
    "trials.";
  root.append(
    make("h3", { class: "title" }, "Map to explore"),
    make("p", { class: "hint" }, hint),
    make("div", { class: "controls" }, viewChoice(), axes, parts.filters, parts.classes),
    make("div", { class: "tools" }, parts.download, parts.reset, parts.count),
    make("div", { class: "sides" }, make("div", {}, parts.map, marks(), parts.remarks), parts.detail),
    parts.status,
    parts.tip,
  );
}

function marks() {
  const text =
    "In a cell: its Θ, also as shade. White inside: attention is not topical. Corner above: its trials " +
    "disagree; corner below: some diverged. Grey dot: not run, not finished or filtered out.";
  return make("p", { class: "hint" }, text);
}

// The cell that is open at first on a wide screen: of the two-stage ones that with the largest Theta.
function tellingCell() {
  const cells = [...map.cells.values()].filter((cell) => cell.element);
  const rank = ({ score, trials }) =>
    (data.classes[score.kind].name === "two-stage" ? 10 : 0) +
    (Number.isFinite(score.theta[0]) ? score.theta[0] : -1) -
    (trials.some((trial) => suffix.text(trial)) ? 5 : 0);
  return cells.reduce((best, cell) => (rank(cell) > rank(best) ? cell : best), cells[0]);
}

function start() {
  build();
  classChips();
  settingChips();
  drawMap();
  if (window.innerWidth >= 1000 && map.cells.size) {
    state.open = tellingCell().key;
    tabStop(map.cells.get(state.open).element);
  }
  markOpen();
  drawDetail();
  listen();
  root.dataset.ready = String(Math.round(performance.now()));
}

start();

// What is beside the map: view, axes, filters, counts.

function describe() {
  const cells = shownCells();
  const trials = cells.reduce((sum, cell) => sum + cell.trials.length, 0);
  const all = data.ids.length.toLocaleString("en");
  parts.count.textContent = `${counted(cells.length, "cell")} with ${counted(trials, "trial")} of ${all}`;
  const pooled = map.pooled.map((setting) => setting.label).join(", ");
  const remarks = [
    pooled && `A cell holds all values of ${pooled}.`,
    map.shared && `Neighbouring values share one of ${MOST_PLACES} places, named by the middle one.`,
    map.regional && "The map was refined: the part of a cell is what lies nearest to its point.",
    data.sentence,
  ];
  parts.remarks.textContent = remarks.filter(Boolean).join(" ");
  parts.download.textContent = `Download ${counted(trials, "trial")} as CSV`;
  parts.download.disabled = !trials;
  parts.reset.disabled = !state.hiddenClasses.size && ![...state.hidden.values()].some((codes) => codes.size);
  const counts = new Map();
  for (const cell of map.cells.values()) counts.set(cell.score.kind, (counts.get(cell.score.kind) ?? 0) + 1);
  for (const [kind, chip] of parts.chips) {
    chip.hidden = !counts.has(kind) && !state.hiddenClasses.has(kind);
    chip.querySelector(".number").textContent = String(counts.get(kind) ?? 0);
  }
}

function chip(text, checked, change, ...before) {
  const box = make("input", { type: "checkbox", checked, onchange: () => change(box.checked) });
  return make("label", { class: "chip" }, box, ...before, make("span", {}, text));
}

function classChips() {
  parts.chips = new Map();
  for (const kind of data.legend) {
    const look = data.classes[kind];
    const colour = look.hatched ? `url(#hatch-${kind})` : look.colour;
    const square = draw("rect", { width: 16, height: 16, fill: colour });
    const swatch = draw("svg", { width: 16, height: 16, class: "swatch", "aria-hidden": "true" }, square);
    const change = (checked) => {
      if (checked) state.hiddenClasses.delete(kind);
      else state.hiddenClasses.add(kind);
      drawMap();
    };
    const found = chip(look.name, !state.hiddenClasses.has(kind), change, swatch);
    found.append(make("span", { class: "number" }));
    parts.chips.set(kind, found);
  }
  const legend = make("legend", {}, "Class: number of cells (untick to hide)");
  parts.classes.replaceChildren(legend, ...parts.chips.values());
}

function settingChips() {
  const { chosen } = panelSettings();
  const kept = settings.filter((setting) => state.hidden.get(setting.name)?.size);
  const wanted = settings.filter((setting) => chosen.includes(setting) || kept.includes(setting));
  const sets = wanted.map((setting) => {
    if (!state.hidden.has(setting.name)) state.hidden.set(setting.name, new Set());
    const hidden = state.hidden.get(setting.name);
    const chips = setting.texts.map((text, code) =>
      chip(text, !hidden.has(code), (checked) => {
        if (checked) hidden.delete(code);
        else hidden.add(code);
        drawMap();
      }),
    );
    return make("fieldset", { "data-setting": setting.name }, make("legend", {}, setting.label), ...chips);
  });
  parts.filters.replaceChildren(...sets);
}

function viewChoice() {
  const choices = Object.entries(VIEWS).map(([view, text]) => {
    const change = () => {
      state.view = view;
      drawMap();
      drawDetail();
    };
    const attributes = { type: "radio", name: "explorer-view", value: view, checked: view === state.view };
    return make("label", { class: "chip" }, make("input", { ...attributes, onchange: change }), text);
  });
  return make("fieldset", {}, make("legend", {}, "Classes by the"), ...choices);
}

function axisChoice(axis, text) {
  const options = settings.map((setting) =>
    make("option", { value: setting.name, selected: setting.name === state[axis] }, setting.label),
  );
  if (!state[axis]) options.unshift(make("option", { value: "", selected: true }, "-"));
  const change = () => {
    const other = axis === "x" ? "y" : "x";
    const before = state[axis];
    state[axis] = select.value;
    if (state[other] === select.value) {
      state[other] = before;
      parts[other].value = before;
    }
    settingChips();
    drawMap();
    drawDetail();
  };
  const select = make("select", { onchange: change, "data-axis": axis }, ...options);
  parts[axis] = select;
  return make("label", { class: "axis" }, text, select);
}

function reset() {
  state.hidden.clear();
  state.hiddenClasses.clear();
  settingChips();
  classChips();
  drawMap();
  parts.map.querySelector(".cell[tabindex='0']")?.focus();
}

// The map: a panel per combination of settings, a shape per cell.

const MOST_PANELS = 24; // drawn before the button is pressed

function rgb(colour) {
  return [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
}

function shade(score) {
  const look = data.classes[score.kind];
  const strength = Number.isFinite(score.theta[0]) && !look.hatched ? score.theta[0] : 1;
  const weight = 0.5 + 0.5 * Math.min(1, Math.max(0, strength));
  return rgb(look.colour).map((part) => Math.round(255 - weight * (255 - part)));
}

// Black or white, whichever has more contrast: at least 4.5 to 1 on any ground.
function ink(colour) {
  const [red, green, blue] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function paint(score) {
  if (data.classes[score.kind].hatched) return `url(#hatch-${score.kind})`;
  return `rgb(${shade(score).join(",")})`;
}

function cellShapes(cell, mode, layout, region) {
  const [x, y] = [layout.x(cell.x), layout.y(cell.y)];
  const { score } = cell;
  const fillWith = { class: "shape", fill: paint(score) };
  if (mode === "points") {
    const circle = draw("circle", { ...fillWith, cx: x, cy: y, r: layout.size / 2 });
    return score.hollow ? [circle, dot(x, y, layout.size / 4)] : [circle];
  }
  if (mode === "regions") {
    const outline = draw("path", { class: "outline", d: region.outline, fill: "none" });
    return [draw("path", { ...fillWith, d: region.boxes }), outline, dot(x, y, 1.5)];
  }
  const half = layout.size / 2 - 1;
  const square = (part) => ({ x: x - part, y: y - part, width: 2 * part, height: 2 * part });
  const found = [draw("rect", { ...fillWith, ...square(half) })];
  if (score.hollow) found.push(draw("rect", { fill: "#fff", ...square(half * 0.72) }));
  const tip = half * 0.55;
  const colour = data.classes[score.kind].name === "diverged" ? "#ccc" : "#000";
  const corner = { fill: colour, stroke: "#fff", "stroke-width": 0.5 };
  const corners = [[score.mixed, -1], [score.failed, 1]].filter(([is]) => is);
  for (const [, down] of corners) {
    const d = `M${x + half} ${y + down * half}h${-tip}l${tip} ${-down * tip}z`;
    found.push(draw("path", { ...corner, d }));
  }
  if (Number.isFinite(score.theta[0]) && layout.size >= 26 && !data.classes[score.kind].hatched) {
    const on = score.hollow ? "#000" : ink(shade(score));
    const text = theta(score.theta[0]).replace(/^0/, "");
    found.push(draw("text", { x, y: y + 4, fill: on, class: "theta" }, text));
  }
  return found;
}

function dot(x, y, r) {
  return draw("circle", { cx: x, cy: y, r, fill: "#fff", stroke: "#000", "stroke-width": 0.6 });
}

function drawCell(cell, shapes) {
  const isHidden = state.hiddenClasses.has(cell.score.kind);
  if (isHidden) {
    return draw("g", { class: "faded", "aria-hidden": "true" }, shapes[0]);
  }
  cell.element = draw(
    "g",
    {
      class: "cell",
      role: "button",
      tabindex: "-1",
      "aria-label": cellLabel(cell),
      "aria-pressed": String(cell.key === state.open),
      "data-key": cell.key,
    },
    ...shapes,
  );
  return cell.element;
}

function axisLabels(layout) {
  const base = layout.height + 13;
  const found = spaced(layout.xTicks, 12).map(([x, text]) => {
    if (!layout.turned) return draw("text", { x, y: base, class: "tick middle" }, text);
    const turn = `rotate(-45 ${x + 4} ${base - 3})`;
    return draw("text", { x: x + 4, y: base - 3, class: "tick end", transform: turn }, text);
  });
  for (const [y, text] of spaced(layout.yTicks, 12)) {
    found.push(draw("text", { x: -6, y: y + 4, class: "tick end" }, text));
  }
  if (state.x) {
    const at = { x: layout.width / 2, y: layout.height + layout.below - 3 };
    found.push(draw("text", { ...at, class: "tick middle name" }, byName.get(state.x).label));
  }
  if (state.y) {
    const [x, y] = [12 - layout.left, layout.height / 2];
    const turn = { transform: `rotate(-90 ${x} ${y})` };
    found.push(draw("text", { x, y, ...turn, class: "tick middle name" }, byName.get(state.y).label));
  }
  return found;
}

// Of ticks that are too near to each other every second, third, ... one.
function spaced(ticks, apart) {
  if (ticks.length < 2) return ticks;
  const every = Math.ceil(apart / Math.abs(ticks[1][0] - ticks[0][0]));
  return ticks.filter((_, number) => number % every === 0);
}

function drawPanel(panel, room) {
  const [xs, ys] = [axisCodes(panel, "x"), axisCodes(panel, "y")];
  const mode = modeOf(panel, xs, ys);
  const layout = mode === "lattice" ? latticeLayout(xs, ys, room) : valueLayout(xs, ys, room);
  panel.cells.sort((a, b) => b.y - a.y || a.x - b.x);
  const found = mode === "regions" ? regions(panel, layout, xs, ys) : [];
  map.regional ||= mode === "regions";
  if (panel.cells.length > 150) layout.size = Math.min(layout.size, mode === "points" ? 9 : Infinity);
  layout.below = (layout.turned ? 8 + 0.72 * widest(layout.xTicks.map(([, text]) => text)) : 18) + 16;
  const name = state.x ? widest([byName.get(state.x).label]) : 0;
  const right = Math.max(layout.width, (layout.width + name) / 2) + 8;
  const [width, height] = [layout.left + right, layout.height + layout.below + 4];
  const inside = draw("g", { transform: `translate(${layout.left} 3)` });
  if (mode !== "lattice") inside.append(draw("rect", { ...frame(layout), class: "frame" }));
  panel.cells.forEach((cell, number) => {
    cell.element = null;
    inside.append(drawCell(cell, cellShapes(cell, mode, layout, found[number])));
  });
  if (mode === "lattice") inside.append(...emptyPlaces(panel, layout, xs, ys));
  inside.append(...axisLabels(layout));
  const svg = draw("svg", { width, height, role: "group", "aria-label": panel.title || "map" }, inside);
  const title = make("h4", { style: `max-width:${Math.max(width, 160)}px` }, panel.title);
  return make("div", { class: "panel" }, title, make("div", { class: "scroll" }, svg));
}

function emptyPlaces(panel, layout, xs, ys) {
  const taken = new Set(panel.cells.map((cell) => `${cell.x}:${cell.y}`));
  const places = xs.flatMap((x) => ys.map((y) => [x, y])).filter((place) => !taken.has(place.join(":")));
  return places.map(([x, y]) => draw("circle", { cx: layout.x(x), cy: layout.y(y), r: 1.5, class: "empty" }));
}

function frame(layout) {
  return { x: 0, y: 0, width: layout.width, height: layout.height };
}

function drawMap() {
  const focused = document.activeElement?.getAttribute?.("data-key");
  map = makeMap();
  const room = parts.map.clientWidth || 360;
  const shownPanels = state.allPanels ? map.panels : map.panels.slice(0, MOST_PANELS);
  parts.map.classList.toggle("several", map.panels.length > 1);
  parts.map.replaceChildren(...shownPanels.map((panel) => drawPanel(panel, room)));
  if (map.panels.length > shownPanels.length) {
    const more = `Show ${counted(map.panels.length - shownPanels.length, "further panel")}`;
    const press = () => {
      state.allPanels = true;
      drawMap();
    };
    parts.map.append(make("button", { type: "button", onclick: press }, more));
  }
  const stop = map.cells.get(focused)?.element ?? map.cells.get(state.open)?.element ?? drawnCells()[0];
  tabStop(stop);
  if (focused && map.cells.get(focused)?.element) stop.focus({ preventScroll: true });
  describe();
  markOpen();
}

function drawnCells() {
  return [...parts.map.querySelectorAll(".cell")];
}

function shownCells() {
  return [...map.cells.values()].filter((cell) => !state.hiddenClasses.has(cell.score.kind));
}

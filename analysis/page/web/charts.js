// Trajectories of the chosen cell: losses with limit lines, order parameters, norms.

const CURVES = {
  norm_v: ["‖W^V‖", "#0072B2", ""],
  norm_k: ["‖W^K‖", "#D55E00", ""],
  norm_q: ["‖W^Q‖", "#B87700", "5 3"],
  norm_e: ["‖W^E‖", "#007D5B", ""],
  v_block: ["V: same - other topic", "#0072B2", ""],
  a_topic: ["attention: same - other topic", "#D55E00", ""],
  v_diag: ["V: own word - same topic", "#0072B2", "2 3"],
  a_self: ["attention: own word - same topic", "#D55E00", "2 3"],
};
const NORMS = ["norm_v", "norm_k", "norm_q", "norm_e"];
const ORDER = ["v_block", "a_topic", "v_diag", "a_self"];
const LINES = { uniform: "uniform", stage1: "stage 1", stage2: "stage 2", bayes: "Bayes" };

function charts(cell) {
  const trials = cell.trials.filter((trial) => records?.place.has(trial)).slice(0, MOST_TRIALS);
  if (!trials.length) return [make("p", { class: "hint" }, data.sentence || "These trials have no records.")];
  const drawAgain = (name) => (checked) => {
    state[name] = checked;
    drawDetail();
  };
  const options = make(
    "div",
    { class: "tools" },
    chip("steps on a log axis", state.logSteps, drawAgain("logSteps")),
    records.lines.stage2 ? chip("enlarge the stage lines", state.zoom, drawAgain("zoom")) : "",
  );
  const order = curveChart("Order parameters (log axis, only above zero)", trials, ORDER, true);
  return [options, lossChart(trials), order, curveChart("Norms", trials, NORMS, false)].filter(Boolean);
}

function limitLines(trials) {
  const found = {};
  for (const [name, values] of Object.entries(records.lines)) {
    const own = trials.map((trial) => values[records.place.get(trial)]).filter(Number.isFinite);
    if (own.length) found[name] = own.reduce((sum, value) => sum + value, 0) / own.length;
  }
  return found;
}

function lossChart(trials) {
  if (!records.curves.eval_loss) return null;
  const lines = limitLines(trials);
  const series = [];
  for (const trial of trials) {
    const colour = lineColour(data.classes[views[state.view].class[trial]].colour);
    for (const [name, dash] of [["eval_loss_uniform", "3 3"], ["eval_loss", ""]]) {
      if (records.curves[name]) series.push({ trial, name, colour, dash });
    }
  }
  const legend = [
    ["held-out loss", "#1b1f24", ""],
    ["same, attention forced uniform", "#1b1f24", "3 3"],
  ];
  return chart("Loss", series, legend, { ...lossRange(trials, series, lines), isLog: false }, lines);
}

// From the lowest loss or line up to where trials began; enlarged, around stages 1 and 2.
function lossRange(trials, series, lines) {
  const values = series.flatMap(({ trial, name }) => curve(trial, name).filter(Number.isFinite));
  const starts = trials.map((trial) => curve(trial, "eval_loss")[0]).filter(Number.isFinite);
  starts.sort((a, b) => a - b);
  const least = Math.min(...values);
  const known = [...Object.values(lines), quantile(starts, 0.5), least].filter(Number.isFinite);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  const gap = lines.stage1 - lines.stage2;
  if (state.zoom && gap > 0) {
    const bottom = Math.max(Math.min(lines.stage2, least), lines.stage1 - 4 * gap);
    const span = lines.stage1 - bottom;
    return { low: bottom - 0.2 * span, high: lines.stage1 + 0.8 * span };
  }
  const margin = 0.05 * (high - low) || 0.5;
  return { low: low - margin, high: high + margin };
}

// Pale colours of classes are darkened: a thin line needs three to one on white.
function lineColour(colour) {
  const [red, green, blue] = rgb(colour);
  const light = 0.3 * red + 0.59 * green + 0.11 * blue;
  const weight = Math.min(1, 140 / light);
  return `rgb(${[red, green, blue].map((part) => Math.round(part * weight)).join(",")})`;
}

function curveChart(title, trials, names, isLog) {
  const drawn = names.filter((name) => records.curves[name]);
  const series = drawn.flatMap((name) =>
    trials.map((trial) => ({ trial, name, colour: CURVES[name][1], dash: CURVES[name][2] })),
  );
  const values = series.flatMap(({ trial, name }) => curve(trial, name)).filter(Number.isFinite);
  const sized = isLog ? values.filter((value) => value > 0) : values;
  if (!sized.length) return null;
  let high = Math.max(...sized);
  let low = isLog ? Math.max(Math.min(...sized), high * 1e-10) : Math.min(0, ...sized);
  if (isLog && low >= high) [low, high] = [low / 3, high * 3];
  if (low >= high) high = low + 1;
  const legend = drawn.map((name) => CURVES[name]);
  return chart(title, series, legend, { low, high: isLog ? high * 1.3 : high * 1.04, isLog }, {});
}

function chart(title, series, legend, axis, lines) {
  const room = Math.max(220, contentWidth(parts.detail));
  const right = Object.keys(lines).length ? 54 : 22;
  const box = { x: 46, y: 6, width: room - 46 - right, height: 140 };
  const scales = chartScales(series, axis, box);
  const { x, y, yTicks } = scales;
  const across = (value, name) => draw("path", { d: `M0 ${y(value)}H${box.width}`, class: name });
  const plot = draw("svg", { ...box, overflow: "hidden" });
  plot.append(...yTicks.map((value) => across(value, "grid")));
  plot.append(...Object.values(lines).map((value) => across(value, "limit")));
  for (const { trial, name, colour, dash } of series) {
    const line = draw("path", { d: path(steps(trial), curve(trial, name), x, y, axis), class: "line" });
    const look = { stroke: colour, "stroke-dasharray": dash, "data-line": trial, "data-curve": name };
    plot.append(fill(line, look, []));
  }
  const size = { width: room, height: box.height + 38 };
  const said = { role: "img", "aria-label": `${title} against the step` };
  const svg = draw("svg", { ...size, ...said }, plot, draw("rect", { ...box, class: "frame" }));
  svg.append(...chartLabels(box, scales), ...lineLabels(box, y, lines));
  const keys = legend.map(([text, colour, dash]) => key(text, colour, dash));
  return make("figure", { class: "chart" }, make("figcaption", {}, make("b", {}, title), ...keys), svg);
}

// From steps and values to places in the box; the logarithm of steps begins at the first after 0.
function chartScales(series, axis, box) {
  const all = series.flatMap(({ trial }) => [...steps(trial)]);
  const last = Math.max(1, ...all);
  const first = Math.min(last, ...all.filter((step) => step > 0));
  const turnX = state.logSteps ? (step) => Math.log1p(step / first) : (step) => step;
  const turnY = axis.isLog ? Math.log10 : (value) => value;
  const [bottom, top] = [turnY(axis.low), turnY(axis.high)];
  return {
    last,
    x: (step) => (box.width * turnX(step)) / turnX(last),
    y: (value) => (box.height * (top - turnY(value))) / (top - bottom),
    xTicks: state.logSteps ? [0, ...decades(first, last)] : niceTicks(0, last, 4),
    yTicks: axis.isLog ? decades(axis.low, axis.high) : niceTicks(axis.low, axis.high, 4),
  };
}

function contentWidth(element) {
  const { paddingLeft, paddingRight } = getComputedStyle(element);
  return Math.floor(element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
}

function key(text, colour, dash) {
  const line = draw("path", { d: "M0 6H22", stroke: colour, "stroke-dasharray": dash, "stroke-width": 2 });
  const drawn = draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, line);
  return make("span", { class: "key" }, drawn, text);
}

// A gap where a value is missing; a value between two gaps is a dot.
function path(at, values, x, y, { isLog, low, high }) {
  const far = high + 4 * (high - low);
  let text = "";
  let isOpen = false;
  values.forEach((value, number) => {
    if (!Number.isFinite(value) || (isLog && value <= 0)) {
      isOpen = false;
      return;
    }
    const inside = isLog ? Math.max(value, low / 100) : Math.min(value, far);
    const point = `${x(at[number]).toFixed(1)} ${y(inside).toFixed(1)}`;
    text += isOpen ? `L${point}` : `M${point}h.1`;
    isOpen = true;
  });
  return text;
}

function chartLabels(box, { x, y, xTicks, yTicks, last }) {
  const middle = (place, below, text) =>
    draw("text", { x: box.x + place, y: box.y + box.height + below, class: "tick middle" }, text);
  const found = yTicks.map((value) =>
    draw("text", { x: box.x - 5, y: box.y + y(value) + 4, class: "tick end" }, shown(value)),
  );
  let before = -Infinity;
  for (const step of xTicks) {
    if (x(step) - before < 34 || x(last) - x(step) < 40) continue;
    before = x(step);
    found.push(middle(before, 15, String(step)));
  }
  return [...found, middle(x(last), 15, String(last)), middle(box.width / 2, 28, "step")];
}

// Names of limit lines at their right ends, moved apart where lines are near to each other.
function lineLabels(box, y, lines) {
  let lowest = -Infinity;
  const inside = Object.entries(lines).filter(([, value]) => y(value) >= -1 && y(value) <= box.height + 1);
  inside.sort((a, b) => b[1] - a[1]);
  return inside.map(([name, value]) => {
    lowest = Math.max(lowest + 12, box.y + y(value) + 4);
    return draw("text", { x: box.x + box.width + 4, y: lowest, class: "tick" }, LINES[name]);
  });
}

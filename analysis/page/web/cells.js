// Cells: trials grouped along two settings and into panels by the others, and what a cell says of itself.

const MOST_PANEL_VALUES = 12; // of a setting that makes panels; one with more is pooled in a cell
const MOST_CELLS = 4000; // more, and neighbours along an axis share a place
const MOST_PLACES = 40; // along a shared axis

const state = {
  view: "loss",
  x: data.x,
  y: data.y,
  hidden: new Map(), // setting: codes that are filtered out
  hiddenClasses: new Set(),
  open: "", // the key of the cell whose trials are shown
  logSteps: true,
  zoom: false,
  allPanels: false,
};
let map = { panels: [], cells: new Map() };
const parts = {}; // elements that are filled again and again

function visibleTrials() {
  const filters = [...state.hidden].filter(([, codes]) => codes.size);
  const found = [];
  for (let trial = 0; trial < data.ids.length; trial += 1) {
    if (filters.every(([name, codes]) => !codes.has(byName.get(name).code[trial]))) found.push(trial);
  }
  return found;
}

function keyOf(trial, chosen) {
  let key = 0;
  for (const setting of chosen) key = key * setting.values.length + setting.code[trial];
  return key;
}

// Does a setting take several values among trials that are equal in the others?
function differs(setting, others) {
  const first = new Map();
  for (let trial = 0; trial < data.ids.length; trial += 1) {
    const key = keyOf(trial, others);
    const code = setting.code[trial];
    if (!first.has(key)) first.set(key, code);
    else if (first.get(key) !== code) return true;
  }
  return false;
}

// Words always make panels, numbers where they vary at one place of both axes.
function panelSettings() {
  const axes = [state.x, state.y].filter(Boolean).map((name) => byName.get(name));
  const free = settings.filter((setting) => setting.name !== "seed" && !axes.includes(setting));
  const few = free.filter((setting) => setting.values.length <= MOST_PANEL_VALUES);
  const chosen = few.filter((setting) => !setting.numeric);
  for (const setting of few.filter((each) => each.numeric)) {
    if (differs(setting, [...chosen, ...axes])) chosen.push(setting);
  }
  const rest = chosen.filter((setting) => !data.main.includes(setting.name));
  const main = chosen.filter((setting) => data.main.includes(setting.name));
  const others = free.filter((setting) => !chosen.includes(setting));
  const pooled = others.filter((setting) => differs(setting, [...chosen, ...axes]));
  return { chosen: [...rest, ...main], titled: [...main, ...rest], pooled };
}

// The code that stands for each code of an axis: itself, or the middle one of its neighbours.
function places(name, trials, share) {
  if (!name) return () => 0;
  const setting = byName.get(name);
  const codes = [...new Set(trials.map((trial) => setting.code[trial]))].sort((a, b) => a - b);
  if (!share || codes.length <= MOST_PLACES) return (trial) => setting.code[trial];
  const middle = new Map();
  const bins = Array.from({ length: MOST_PLACES }, () => []);
  codes.forEach((code, number) => bins[Math.floor((number * MOST_PLACES) / codes.length)].push(code));
  for (const bin of bins) for (const code of bin) middle.set(code, bin[bin.length >> 1]);
  return (trial) => middle.get(setting.code[trial]);
}

function grouped(trials, panels, share) {
  const atX = places(state.x, trials, share);
  const atY = places(state.y, trials, share);
  const found = new Map();
  for (const trial of trials) {
    const panel = keyOf(trial, panels);
    const [x, y] = [atX(trial), atY(trial)];
    const key = `${panel}:${x}:${y}`;
    if (!found.has(key)) found.set(key, { key, panel, x, y, trials: [] });
    found.get(key).trials.push(trial);
  }
  return found;
}

function makeMap() {
  const trials = visibleTrials();
  const { chosen, titled, pooled } = panelSettings();
  let cells = grouped(trials, chosen, false);
  const shared = cells.size > MOST_CELLS;
  if (shared) cells = grouped(trials, chosen, true);
  const panels = new Map();
  for (const cell of cells.values()) {
    cell.score = scoreCell(cell.trials, state.view);
    if (!panels.has(cell.panel)) panels.set(cell.panel, { key: cell.panel, cells: [] });
    panels.get(cell.panel).cells.push(cell);
  }
  const ordered = [...panels.values()].sort((a, b) => a.key - b.key);
  for (const panel of ordered) {
    const first = panel.cells[0].trials[0];
    panel.title = titled.map((setting) => settingText(setting, setting.code[first])).join(", ");
    for (const cell of panel.cells) cell.place = panel.title;
  }
  const main = chosen.filter((setting) => data.main.includes(setting.name));
  const across = new Set(trials.map((trial) => keyOf(trial, main))).size; // panels in a row
  return { panels: ordered, cells, across, pooled, shared };
}

function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}

function finite(trials, values) {
  return trials.map((trial) => values[trial]).filter(Number.isFinite).sort((a, b) => a - b);
}

function scoreCell(trials, view) {
  const found = views[view];
  const counts = new Array(data.classes.length).fill(0);
  for (const trial of trials) counts[found.class[trial]] += 1;
  const kind = counts.indexOf(Math.max(...counts)); // in a tie the first
  const { staged, attends } = data.classes[kind];
  const thetas = staged ? finite(trials, found.theta) : [];
  const diverged = data.classes.findIndex((each) => each.name === "diverged");
  const flat = trials.filter((trial) => topical[trial]).length * 2 < trials.length - counts[diverged];
  return {
    kind,
    counts,
    theta: [0.5, 0.25, 0.75].map((share) => quantile(thetas, share)),
    lag: quantile(staged ? finite(trials, found.log_lag) : [], 0.5),
    onsetV: quantile(finite(trials, found.onset_v), 0.5),
    onsetAttention: quantile(finite(trials, found.onset_attention), 0.5),
    hollow: attends && flat,
    mixed: counts[kind] < trials.length,
    failed: counts[diverged] > 0 && kind !== diverged,
  };
}

function axisText(cell) {
  return [["x", state.x], ["y", state.y]]
    .filter(([, name]) => name)
    .map(([axis, name]) => `${byName.get(name).label} ${byName.get(name).texts[cell[axis]]}`);
}

function classText(cell) {
  const { kind, counts } = cell.score;
  const total = cell.trials.length;
  const share = total === 1 ? "1 trial" : `${counts[kind]} of ${total} trials`;
  const others = counts
    .map((count, number) => [count, number])
    .filter(([count, number]) => count && number !== kind)
    .map(([count, number]) => `${count} ${data.classes[number].name}`);
  return `${data.classes[kind].name} (${[share, ...others].join("; ")})`;
}

function scoreTexts(cell) {
  const { score, trials } = cell;
  const [middle, low, high] = score.theta;
  const spread = trials.length > 1 && Number.isFinite(middle);
  const texts = [`Θ ${theta(middle)}${spread ? ` (quartiles ${theta(low)} to ${theta(high)})` : ""}`];
  texts.push(`log lag ${shown(score.lag)}`);
  texts.push(`half way: V at step ${shown(score.onsetV)}, attention at step ${shown(score.onsetAttention)}`);
  if (score.hollow) texts.push("attention is not topical");
  return texts;
}

function cellLabel(cell) {
  const place = [cell.place, ...axisText(cell)].filter(Boolean).join(", ");
  return `${place || "all trials"}: ${classText(cell)}, Θ ${theta(cell.score.theta[0])}`;
}

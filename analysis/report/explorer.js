// The map to explore: trials grouped to cells along two settings, a panel per value of the others.
// Reads the JSON beside it (explorer.py says what is in it) and writes into #explorer.  All text of a
// run enters the page as text nodes.
"use strict";
(() => {
  const root = document.getElementById("explorer");
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const SVG = root.querySelector("svg").namespaceURI;
  const VIEWS = { loss: "loss", order: "order parameters", norm: "norms" };
  const ENDS = { loss: "", order: "_order", norm: "_norm" };
  const SCORES = ["theta", "log_lag", "onset_v", "onset_attention"];
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
  const LINES = { uniform: "uniform", stage1: "stage 1", stage2: "stage 2", bayes: "Bayes" };
  const MOST_PANEL_VALUES = 12; // of a setting that makes panels; one with more is pooled in a cell
  const MOST_PANELS = 24; // drawn before the button is pressed
  const MOST_CELLS = 4000; // more, and neighbours along an axis share a place
  const MOST_PLACES = 40; // along a shared axis
  const MOST_LATTICE = 64; // values along an axis of a lattice
  const MOST_LINES = 260; // along an axis of a refined lattice
  const REACH = 22; // pixels between a click and the cell that it means
  const MOST_TRIALS = 24; // of a cell, as lines and in its list

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

  // ---- numbers from text

  function numbers(text, Kind) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
    return new Kind(bytes.buffer);
  }

  function plain(value) {
    return Number(value.toPrecision(7));
  }

  function coded(column) {
    const code = numbers(column.codes, column.bytes === 2 ? Uint16Array : Uint32Array);
    const isPacked = typeof column.values === "string";
    const values = isPacked ? Array.from(numbers(column.values, Float32Array), plain) : column.values;
    const texts = column.texts ?? values.map((value) => shown(value, 4));
    return { ...column, code, values, texts, text: (trial) => texts[code[trial]] };
  }

  const settings = data.settings.map(coded);
  const byName = new Map(settings.map((setting) => [setting.name, setting]));
  const suffix = coded(data.suffix);
  const notes = Object.entries(data.notes).map(([name, column]) => [name, coded(column)]);
  const topical = numbers(data.topical, Uint8Array);
  const views = {};
  for (const [view, packed] of Object.entries(data.views)) {
    views[view] = { class: numbers(packed.class, Uint8Array) };
    for (const name of SCORES) views[view][name] = numbers(packed[name], Float32Array);
  }
  const records = data.records && unpackedRecords(data.records);

  function unpackedRecords(packed) {
    const counts = numbers(packed.counts, Uint16Array);
    const place = new Map(); // trial: its place among those with records
    const start = [];
    let total = 0;
    numbers(packed.rows, Uint32Array).forEach((trial, number) => {
      place.set(trial, number);
      start.push(total);
      total += counts[number];
    });
    const curves = {};
    for (const [name, { codes, low, high }] of Object.entries(packed.curves)) {
      curves[name] = {
        codes: numbers(codes, Uint16Array),
        low: numbers(low, Float32Array),
        high: numbers(high, Float32Array),
      };
    }
    const lines = {};
    for (const [name, text] of Object.entries(packed.lines)) lines[name] = numbers(text, Float32Array);
    return { counts, place, start, curves, lines, steps: numbers(packed.steps, Uint32Array) };
  }

  // The values of one column of one trial: a sign and a logarithm between the ends of the series.
  function curve(trial, name) {
    const number = records.place.get(trial);
    const { codes, low, high } = records.curves[name];
    const from = records.start[number];
    const scale = (high[number] - low[number]) / 32766;
    return Array.from(codes.subarray(from, from + records.counts[number]), (code) => {
      if (code === 0x8000) return NaN;
      const level = code & 0x7fff;
      if (level === 0) return 0;
      return (code & 0x8000 ? -1 : 1) * Math.exp(low[number] + (level - 1) * scale);
    });
  }

  function steps(trial) {
    const number = records.place.get(trial);
    return records.steps.subarray(records.start[number], records.start[number] + records.counts[number]);
  }

  // ---- text

  function shown(value, digits = 3) {
    if (!Number.isFinite(value)) return "-";
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) {
      return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    return String(Number(value.toPrecision(digits)));
  }

  function counted(count, thing) {
    return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
  }

  function settingText(setting, code) {
    const text = setting.texts[code];
    return data.main.includes(setting.name) ? text : `${setting.label} ${text}`;
  }

  function theta(value) {
    return Number.isFinite(value) ? value.toFixed(2) : "-";
  }

  // ---- elements

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function make(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function draw(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  // ---- cells

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

  // ---- scores of a cell, by the rules of scoring/cells.py

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

  // ---- colours

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
  function ink(parts) {
    const linear = parts.map((part) => (part / 255 <= 0.04 ? part / 3295 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
  }

  function paint(score) {
    if (data.classes[score.kind].hatched) return `url(#hatch-${score.kind})`;
    return `rgb(${shade(score).join(",")})`;
  }

  // ---- where the cells of a panel are drawn

  function axisCodes(panel, axis) {
    return [...new Set(panel.cells.map((cell) => cell[axis]))].sort((a, b) => a - b);
  }

  function isNumeric(name) {
    return Boolean(name) && byName.get(name).numeric;
  }

  // Regions if a lattice was refined, points if values are scattered, else a lattice, with gaps if need be.
  function modeOf(panel, xs, ys) {
    const { cells } = panel;
    const wide = Math.max(isNumeric(state.x) ? xs.length : 0, isNumeric(state.y) ? ys.length : 0);
    const isSmall = wide <= MOST_LATTICE;
    if (!wide || (isSmall && cells.length >= 0.6 * xs.length * ys.length)) return "lattice";
    if (isNumeric(state.x) && isNumeric(state.y) && isRefined(cells, xs, ys)) return "regions";
    return isSmall && cells.length >= 1.5 * Math.max(xs.length, ys.length) ? "lattice" : "points";
  }

  // Is every k-th line of the finest lattice full, though the lattice is not?
  function isRefined(cells, xs, ys) {
    const [lineX, lineY] = [finestLines(state.x, xs), finestLines(state.y, ys)];
    if (!lineX || !lineY) return false;
    const [countX, countY] = [lineX(xs.at(-1)) + 1, lineY(ys.at(-1)) + 1];
    const places = cells.map((cell) => [lineX(cell.x), lineY(cell.y)]);
    const isFull = ([everyX, everyY]) => {
      const [coarseX, coarseY] = [Math.ceil(countX / everyX), Math.ceil(countY / everyY)];
      const found = places.filter(([x, y]) => x % everyX === 0 && y % everyY === 0).length;
      return coarseX > 1 && coarseY > 1 && found >= 0.95 * coarseX * coarseY;
    };
    return [2, 3, 4, 8, 9, 16, 27, 32].some((k) => [[k, k], [k, 1], [1, k]].some(isFull));
  }

  // From a code to the number of its line on the lattice with the smallest gap between values, if it is one.
  function finestLines(name, codes) {
    const { at } = scaleOf(name, codes);
    const places = codes.map(at);
    const gap = Math.min(...places.slice(1).map((place, number) => place - places[number]));
    const line = (code) => (at(code) - places[0]) / gap;
    const isEven = codes.every((code) => Math.abs(line(code) - Math.round(line(code))) < 0.1);
    const isFew = line(codes.at(-1)) < MOST_LINES;
    return codes.length > 1 && isEven && isFew ? (code) => Math.round(line(code)) : null;
  }

  // From a code of an axis to its place between 0 and 1, and the codes or values worth a tick.
  function scaleOf(name, codes) {
    const even = new Map(codes.map((code, number) => [code, (number + 0.5) / codes.length]));
    if (!isNumeric(name)) {
      return { at: (code) => even.get(code), ticks: codes.map((code) => [even.get(code), textOf(name, code)]) };
    }
    const { values } = byName.get(name);
    const numbersOf = codes.map((code) => values[code]);
    const [low, high] = [Math.min(...numbersOf), Math.max(...numbersOf)];
    const isLog = low > 0 && high / low >= 20;
    const turn = isLog ? Math.log10 : (value) => value;
    const width = turn(high) - turn(low) || 1;
    const at = (value) => 0.06 + (0.88 * (turn(value) - turn(low))) / width;
    const ticks = (isLog ? decades(low, high) : niceTicks(low, high, 6)).map((value) => [at(value), shown(value)]);
    return { at: (code) => at(values[code]), ticks };
  }

  function textOf(name, code) {
    return name ? byName.get(name).texts[code] : "";
  }

  function niceTicks(low, high, count) {
    const rough = (high - low) / count || 1;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
    const ticks = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-6; number += 1) {
      ticks.push(Number((number * step).toPrecision(12)));
    }
    return ticks;
  }

  function decades(low, high) {
    const ends = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((ends[1] - ends[0] + 1) / 5));
    const ticks = [];
    for (let power = ends[0]; power <= ends[1]; power += every) ticks.push(Number(`1e${power}`));
    return ticks;
  }

  const widest = (texts) => Math.max(0, ...texts.map((text) => text.length)) * 6.2;

  // Places of a lattice: squares of equal size, values in order.
  function latticeLayout(xs, ys, room) {
    const left = widest(ys.map((code) => textOf(state.y, code))) + 28;
    const sizeFor = (columns) => Math.floor((room / columns - 16 - left - 8) / xs.length);
    const beside = Math.min(map.across, map.panels.length);
    const inRow = Array.from({ length: beside }, (_, number) => beside - number).find((n) => sizeFor(n) >= 28);
    const [least, most, columns] = room < 600 ? [24, 48, 1] : [16, 40, inRow ?? 1];
    const size = Math.max(least, Math.min(most, sizeFor(columns)));
    const turned = widest(xs.map((code) => textOf(state.x, code))) > size - 3;
    const [atX, atY] = [new Map(), new Map()];
    xs.forEach((code, number) => atX.set(code, (number + 0.5) * size));
    ys.forEach((code, number) => atY.set(code, (ys.length - number - 0.5) * size));
    return {
      left,
      size,
      turned,
      width: xs.length * size,
      height: ys.length * size,
      x: (code) => atX.get(code),
      y: (code) => atY.get(code),
      xTicks: xs.map((code) => [atX.get(code), textOf(state.x, code)]),
      yTicks: ys.map((code) => [atY.get(code), textOf(state.y, code)]),
    };
  }

  function valueLayout(xs, ys, room) {
    const [scaleX, scaleY] = [scaleOf(state.x, xs), scaleOf(state.y, ys)];
    const left = widest(scaleY.ticks.map(([, text]) => text)) + 28;
    const width = Math.min(map.panels.length > 1 ? 340 : 640, room - left - 8);
    const height = Math.round(state.y ? Math.min(width * 0.8, 420) : 60);
    return {
      left,
      width,
      height,
      turned: false,
      size: 12,
      x: (code) => scaleX.at(code) * width,
      y: (code) => (1 - scaleY.at(code)) * height,
      xTicks: scaleX.ticks.map(([place, text]) => [place * width, text]),
      yTicks: scaleY.ticks.map(([place, text]) => [(1 - place) * height, text]),
    };
  }

  // The boxes between values along both axes, and which cell is nearest to each.
  function nearestCells(panel, layout, xs, ys) {
    const edges = (positions, end) => {
      const inner = positions.slice(1).map((position, number) => (position + positions[number]) / 2);
      return [0, ...inner, end];
    };
    const right = xs.map(layout.x);
    const down = ys.map(layout.y).reverse();
    const centres = panel.cells.map((cell) => [layout.x(cell.x), layout.y(cell.y)]);
    const owner = down.map((y) =>
      right.map((x) => {
        let [best, nearest] = [Infinity, 0];
        centres.forEach(([ownX, ownY], number) => {
          const apart = (ownX - x) ** 2 + (ownY - y) ** 2;
          if (apart < best) [best, nearest] = [apart, number];
        });
        return nearest;
      }),
    );
    return { owner, across: edges(right, layout.width), up: edges(down, layout.height) };
  }

  // The part of a refined map that is nearest to each cell: a path of boxes and one of its outline.
  function regions(panel, layout, xs, ys) {
    const { owner, across, up } = nearestCells(panel, layout, xs, ys);
    const found = panel.cells.map(() => ({ boxes: "", outline: "" }));
    owner.forEach((owners, row) =>
      owners.forEach((own, column) => {
        const [left, right, top, bottom] = [across[column], across[column + 1], up[row], up[row + 1]];
        found[own].boxes += `M${left} ${top}H${right}V${bottom}H${left}z`;
        const sides = [
          [owners[column - 1], `M${left} ${top}V${bottom}`],
          [owners[column + 1], `M${right} ${top}V${bottom}`],
          [owner[row - 1]?.[column], `M${left} ${top}H${right}`],
          [owner[row + 1]?.[column], `M${left} ${bottom}H${right}`],
        ];
        for (const [other, side] of sides) if (other !== own) found[own].outline += side;
      }),
    );
    return found;
  }

  // ---- the map

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
    if (score.mixed) found.push(draw("path", { ...corner, d: `M${x + half} ${y - half}h${-tip}l${tip} ${tip}z` }));
    if (score.failed) found.push(draw("path", { ...corner, d: `M${x + half} ${y + half}h${-tip}l${tip} ${-tip}z` }));
    if (Number.isFinite(score.theta[0]) && layout.size >= 26 && !data.classes[score.kind].hatched) {
      const on = score.hollow ? "#000" : ink(shade(score));
      found.push(draw("text", { x, y: y + 4, fill: on, class: "theta" }, theta(score.theta[0]).replace(/^0/, "")));
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
    return places.map(([x, y]) => draw("circle", { cx: layout.x(x), cy: layout.y(y), r: 1.5, fill: "#8b949e" }));
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
    if (stop) stop.setAttribute("tabindex", "0");
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

  // ---- what is beside the map

  function describe() {
    const cells = shownCells();
    const trials = cells.reduce((sum, cell) => sum + cell.trials.length, 0);
    const all = data.ids.length.toLocaleString("en");
    parts.count.textContent = `${counted(cells.length, "cell")} with ${counted(trials, "trial")} of ${all}`;
    const pooled = map.pooled.map((setting) => setting.label).join(", ");
    const remarks = [
      pooled && `A cell holds all values of ${pooled}.`,
      map.shared && `Neighbouring values share a place: up to ${MOST_PLACES} along an axis, named by the middle one.`,
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
      const square = draw("rect", { width: 16, height: 16, fill: look.hatched ? `url(#hatch-${kind})` : look.colour });
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
    parts.classes.replaceChildren(make("legend", {}, "Class: number of cells (untick to hide)"), ...parts.chips.values());
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

  // ---- hover, focus, keys

  function cellAt(target) {
    const element = target.closest?.(".cell");
    return element && map.cells.get(element.getAttribute("data-key"));
  }

  // A finger is wider than a point: the nearest cell of the panel, if it is not far.
  function cellNear({ target, clientX, clientY }) {
    let [best, found] = [REACH, null];
    for (const element of target.closest(".scroll")?.querySelectorAll(".cell") ?? []) {
      const [x, y] = middle(element);
      const apart = Math.hypot(x - clientX, y - clientY);
      if (apart < best) [best, found] = [apart, element];
    }
    return found && cellAt(found);
  }

  function showTip(cell) {
    const lines = [axisText(cell).join(" · ") || "all trials", classText(cell), ...scoreTexts(cell)];
    parts.tip.replaceChildren(...lines.map((line, number) => make(number ? "div" : "b", {}, line)));
    parts.tip.hidden = false;
    const at = cell.element.getBoundingClientRect();
    const own = parts.tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, at.left), document.documentElement.clientWidth - own.width - 4);
    const above = at.top - own.height - 6;
    parts.tip.style.left = `${left}px`;
    parts.tip.style.top = `${above > 4 ? above : at.bottom + 6}px`;
  }

  function hideTip() {
    parts.tip.hidden = true;
  }

  function ring(cell, name) {
    parts.map.querySelector(`.${name}`)?.remove();
    const shape = cell?.element?.querySelector(".outline") ?? cell?.element?.querySelector(".shape");
    if (!shape) return;
    const copy = shape.cloneNode();
    copy.setAttribute("class", name);
    copy.setAttribute("fill", "none");
    cell.element.parentNode.append(copy);
  }

  function focusCell(element) {
    for (const other of parts.map.querySelectorAll(".cell[tabindex='0']")) other.setAttribute("tabindex", "-1");
    element.setAttribute("tabindex", "0");
    element.focus();
  }

  // The nearest cell in a direction, in the same panel if there is one.
  function neighbour(from, [right, down]) {
    const own = middle(from);
    const near = (element) => {
      const other = middle(element);
      const [x, y] = [other[0] - own[0], other[1] - own[1]];
      const along = right * x + down * y;
      const aside = Math.abs(right * y) + Math.abs(down * x);
      return along > 1 ? along + 3 * aside : Infinity;
    };
    const nearest = (elements) => {
      let [best, found] = [Infinity, null];
      for (const element of elements) {
        const apart = element === from ? Infinity : near(element);
        if (apart < best) [best, found] = [apart, element];
      }
      return found;
    };
    const panel = from.closest(".panel");
    const inside = [...panel.querySelectorAll(".cell")];
    const straight = inside.filter((element) => {
      const [x, y] = middle(element);
      return Math.abs(right ? y - own[1] : x - own[0]) < 3;
    });
    return nearest(straight) ?? nearest(inside) ?? nearest(drawnCells());
  }

  function middle(element) {
    const { left, top, width, height } = element.querySelector(".shape").getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  }

  const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

  function pressed(event) {
    const cell = cellAt(event.target);
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const cells = drawnCells();
    let next = null;
    if (event.key in ARROWS) next = neighbour(cell.element, ARROWS[event.key]);
    else if (event.key === "Home") next = cells[0];
    else if (event.key === "End") next = cells[cells.length - 1];
    else if (event.key === "Enter" || event.key === " ") openCell(cell, true);
    else if (event.key === "Escape") hideTip();
    else return;
    event.preventDefault();
    if (next) focusCell(next);
  }

  function listen() {
    parts.map.addEventListener("keydown", pressed);
    parts.map.addEventListener("click", (event) => {
      const cell = cellAt(event.target) ?? cellNear(event);
      if (cell) openCell(cell, false);
    });
    parts.map.addEventListener("pointerover", (event) => {
      const cell = event.pointerType !== "touch" && cellAt(event.target);
      if (cell) showTip(cell);
      else hideTip();
    });
    parts.map.addEventListener("pointerleave", hideTip);
    parts.map.addEventListener("focusin", (event) => {
      const cell = cellAt(event.target);
      if (!cell) return;
      ring(cell, "ring");
      if (event.target.matches(":focus-visible")) showTip(cell);
    });
    parts.map.addEventListener("focusout", () => {
      hideTip();
      ring(null, "ring");
    });
    parts.detail.addEventListener("keydown", (event) => {
      if (event.key === "Escape") backToMap();
    });
    window.addEventListener("scroll", hideTip, { passive: true });
    let [width, waiting] = [window.innerWidth, 0];
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        drawMap();
        drawDetail();
      }, 150);
    });
  }

  // ---- the trials of a cell

  function openCell(cell, byKeyboard) {
    state.open = cell.key;
    markOpen();
    drawDetail();
    hideTip();
    const title = parts.detail.querySelector("h3");
    const isBeside = parts.detail.offsetLeft > parts.map.offsetLeft + 100;
    if (byKeyboard) title.focus({ preventScroll: isBeside });
    if (!isBeside) title.scrollIntoView({ block: "start" });
  }

  function markOpen() {
    const cell = map.cells.get(state.open);
    for (const element of parts.map.querySelectorAll("[aria-pressed='true']")) {
      element.setAttribute("aria-pressed", "false");
    }
    cell?.element?.setAttribute("aria-pressed", "true");
    ring(cell, "opened");
  }

  function drawDetail() {
    const cell = map.cells.get(state.open);
    if (!cell) {
      parts.detail.replaceChildren(make("p", { class: "hint" }, "Choose a cell to see its trials."));
      return;
    }
    const heading = [cell.place, ...axisText(cell)].filter(Boolean).join(" · ") || "all trials";
    const suffixes = suffixText(cell.trials);
    parts.detail.replaceChildren(
      make("h3", { tabindex: "-1" }, heading),
      make("p", {}, `By the ${VIEWS[state.view]}: ${classText(cell)}. ${scoreTexts(cell).join("; ")}.${suffixes}`),
      ...charts(cell),
      trialList(cell),
      make("p", { class: "tools" }, make("button", { type: "button", onclick: backToMap }, "Back to the map")),
    );
  }

  function backToMap() {
    const element = map.cells.get(state.open)?.element;
    if (element) focusCell(element);
  }

  function suffixText(trials) {
    const counts = new Map();
    for (const trial of trials) {
      const text = suffix.text(trial);
      if (text) counts.set(text, (counts.get(text) ?? 0) + 1);
    }
    const found = [...counts].map(([text, count]) => `${text} (${counted(count, "trial")})`);
    return found.length ? ` Afterwards: ${found.join(", ")}.` : "";
  }

  function trialList(cell) {
    const differing = settings.filter((setting) => new Set(cell.trials.map((trial) => setting.code[trial])).size > 1);
    const named = byName.has("seed") ? [byName.get("seed"), ...differing.filter(({ name }) => name !== "seed")] : differing;
    const items = cell.trials.slice(0, MOST_TRIALS).map((trial) => trialItem(trial, named));
    const rest = cell.trials.length - items.length;
    if (rest > 0) items.push(make("li", {}, `and ${counted(rest, "more trial")}, in the CSV file`));
    return make("ol", { class: "trials", "aria-label": "Trials of the cell" }, ...items);
  }

  function trialItem(trial, named) {
    const id = data.ids[trial];
    const look = data.classes[views[state.view].class[trial]];
    const classes = Object.keys(VIEWS).map((view) => {
      const kind = data.classes[views[view].class[trial]].name;
      return `${VIEWS[view]}: ${kind}, Θ ${theta(views[view].theta[trial])}`;
    });
    const told = notes
      .filter(([name, column]) => !["ok", ""].includes(column.text(trial)) || name === "stopped_step")
      .filter(([, column]) => column.values[column.code[trial]] !== null)
      .map(([name, column]) => `${name.replaceAll("_", " ")} ${column.text(trial)}`);
    const ends = records?.place.has(trial) ? [`at the end: ${endText(trial)}`] : [];
    const lines = [classes.join(" · "), [suffix.text(trial), ...told, ...ends].filter(Boolean).join(" · ")];
    const square = make("span", { class: "swatch", style: `background:${look.colour}` });
    const title = make("b", {}, [id, ...named.map((s) => `${s.label} ${s.text(trial)}`)].join(" · "));
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
    const names = { eval_loss: "loss", norm_v: "‖W^V‖", norm_k: "‖W^K‖", a_topic: "a_topic" };
    const at = steps(trial);
    const found = Object.entries(names).filter(([name]) => records.curves[name]);
    const texts = found.map(([name, text]) => `${text} ${shown(curve(trial, name).at(-1))}`);
    return `${texts.join(", ")} (step ${at[at.length - 1]})`;
  }

  function mark(trial, on) {
    parts.detail.classList.toggle("picked", on);
    for (const path of parts.detail.querySelectorAll(`[data-line="${trial}"]`)) path.classList.toggle("bold", on);
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
      parts.status.textContent = done ? `Copied: ${content}` : `Copy by hand: ${content}`;
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

  // ---- trajectories

  function charts(cell) {
    const trials = cell.trials.filter((trial) => records?.place.has(trial)).slice(0, MOST_TRIALS);
    if (!trials.length) return [make("p", { class: "hint" }, data.sentence || "These trials have no records here.")];
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
    const found = [options, lossChart(trials)];
    found.push(curveChart("Order parameters (log axis, only above zero)", trials, ["v_block", "a_topic", "v_diag", "a_self"], true));
    found.push(curveChart("Norms", trials, ["norm_v", "norm_k", "norm_q", "norm_e"], false));
    return found.filter(Boolean);
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
      if (records.curves.eval_loss_uniform) series.push({ trial, name: "eval_loss_uniform", colour, dash: "3 3" });
      series.push({ trial, name: "eval_loss", colour, dash: "" });
    }
    const values = series.flatMap(({ trial, name }) => curve(trial, name).filter(Number.isFinite));
    const starts = trials.map((trial) => curve(trial, "eval_loss")[0]).filter(Number.isFinite).sort((a, b) => a - b);
    const known = [...Object.values(lines), quantile(starts, 0.5), Math.min(...values)].filter(Number.isFinite);
    let [low, high] = [Math.min(...known), Math.max(...known)];
    if (state.zoom && lines.stage1 > lines.stage2) {
      const least = Math.max(Math.min(lines.stage2, Math.min(...values)), lines.stage1 - 4 * (lines.stage1 - lines.stage2));
      const span = lines.stage1 - least;
      [low, high] = [least - 0.15 * span, lines.stage1 + 0.75 * span];
    }
    const margin = 0.05 * (high - low) || 0.5;
    const legend = [["held-out loss", "#1b1f24", ""], ["same, attention forced uniform", "#1b1f24", "3 3"]];
    return chart("Loss", series, legend, { low: low - margin, high: high + margin, isLog: false }, lines);
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
    const box = { left: 46, top: 6, width: room - 46 - (Object.keys(lines).length ? 54 : 22), height: 140 };
    const all = series.flatMap(({ trial }) => [...steps(trial)]);
    const last = Math.max(1, ...all);
    const first = Math.min(last, ...all.filter((step) => step > 0));
    const turnX = state.logSteps ? (step) => Math.log1p(step / first) : (step) => step;
    const x = (step) => (box.width * turnX(step)) / turnX(last);
    const turnY = axis.isLog ? Math.log10 : (value) => value;
    const y = (value) => box.height * (1 - (turnY(value) - turnY(axis.low)) / (turnY(axis.high) - turnY(axis.low)));
    const plot = draw("svg", { x: box.left, y: box.top, width: box.width, height: box.height, overflow: "hidden" });
    const yTicks = axis.isLog ? decades(axis.low, axis.high) : niceTicks(axis.low, axis.high, 4);
    for (const value of yTicks) plot.append(draw("path", { d: `M0 ${y(value)}H${box.width}`, class: "grid" }));
    for (const value of Object.values(lines)) plot.append(draw("path", { d: `M0 ${y(value)}H${box.width}`, class: "limit" }));
    for (const { trial, name, colour, dash } of series) {
      const d = path(steps(trial), curve(trial, name), x, y, axis);
      plot.append(draw("path", { d, stroke: colour, "stroke-dasharray": dash, class: "line", "data-line": trial, "data-curve": name }));
    }
    const svg = draw("svg", { width: room, height: box.height + 38, role: "img", "aria-label": `${title} against the step` });
    svg.append(plot, draw("rect", { x: box.left, y: box.top, width: box.width, height: box.height, class: "frame" }));
    svg.append(...chartLabels(box, x, y, { first, last }, yTicks, lines, axis));
    const keys = legend.map(([text, colour, dash]) => key(text, colour, dash));
    return make("figure", { class: "chart" }, make("figcaption", {}, make("b", {}, title), ...keys), svg);
  }

  function contentWidth(element) {
    const { paddingLeft, paddingRight } = getComputedStyle(element);
    return Math.floor(element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
  }

  function key(text, colour, dash) {
    const line = draw("path", { d: "M0 6H22", stroke: colour, "stroke-dasharray": dash, "stroke-width": 2 });
    return make("span", { class: "key" }, draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, line), text);
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

  function chartLabels(box, x, y, { first, last }, yTicks, lines) {
    const found = yTicks.map((value) =>
      draw("text", { x: box.left - 5, y: box.top + y(value) + 4, class: "tick end" }, shown(value)),
    );
    const xTicks = state.logSteps ? [0, ...decades(first, last), last] : [...niceTicks(0, last, 4), last];
    let before = -Infinity;
    const ends = xTicks.filter((step, number) => number === xTicks.length - 1 || x(last) - x(step) > 40);
    for (const step of ends) {
      if (x(step) - before < 34 && step !== last) continue;
      before = x(step);
      found.push(draw("text", { x: box.left + x(step), y: box.top + box.height + 15, class: "tick middle" }, String(step)));
    }
    found.push(draw("text", { x: box.left + box.width / 2, y: box.top + box.height + 27, class: "tick middle" }, "step"));
    let lowest = -Infinity;
    const inside = Object.entries(lines).filter(([, value]) => y(value) >= -1 && y(value) <= box.height + 1);
    for (const [name, value] of inside.sort((a, b) => b[1] - a[1])) {
      lowest = Math.max(lowest + 12, box.top + y(value) + 4);
      found.push(draw("text", { x: box.left + box.width + 4, y: lowest, class: "tick" }, LINES[name]));
    }
    return found;
  }

  // ---- files

  function csv(trials) {
    const cells = (value) => {
      const text = value === null || Number.isNaN(value) ? "" : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const columns = [["trial_id", (trial) => data.ids[trial]]];
    for (const setting of settings) columns.push([setting.name, (trial) => setting.values[setting.code[trial]]]);
    for (const [view, end] of Object.entries(ENDS)) {
      columns.push([`class${end}`, (trial) => data.classes[views[view].class[trial]].name]);
      for (const name of SCORES) {
        columns.push([name + end, (trial) => plain(views[view][name][trial])]);
      }
    }
    columns.push(["suffix", (trial) => suffix.values[suffix.code[trial]]]);
    for (const [name, column] of notes) columns.push([name, (trial) => column.values[column.code[trial]]]);
    const rows = trials.map((trial) => columns.map(([, value]) => cells(value(trial))).join(","));
    return `${[columns.map(([name]) => cells(name)).join(","), ...rows].join("\r\n")}\r\n`;
  }

  function download() {
    const trials = shownCells().flatMap((cell) => cell.trials).sort((a, b) => a - b);
    const file = new Blob([csv(trials)], { type: "text/csv" });
    const link = make("a", { href: URL.createObjectURL(file), download: `${data.name}-selection.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // ---- the page

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
    const axes = settings.length
      ? [make("fieldset", {}, make("legend", {}, "Axes"), axisChoice("x", "across "), settings.length > 1 ? axisChoice("y", "up ") : "")]
      : [];
    const hint = "Hover over a cell or move to it by arrow keys for its numbers; click, tap or press Enter for its trials.";
    root.append(
      make("h3", { class: "title" }, "Map to explore"),
      make("p", { class: "hint" }, hint),
      make("div", { class: "controls" }, viewChoice(), ...axes, parts.filters, parts.classes),
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
    if (window.innerWidth >= 1000 && map.cells.size) state.open = tellingCell().key;
    markOpen();
    drawDetail();
    listen();
    root.dataset.ready = String(Math.round(performance.now()));
  }

  start();
})();

// Where the cells of a panel are drawn: on a lattice, as regions of a refined lattice, as points.

const MOST_LATTICE = 64; // values along an axis of a lattice
const MOST_LINES = 260; // along an axis of a refined lattice

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
  const ticks = isLog ? decades(low, high) : niceTicks(low, high, 6);
  return { at: (code) => at(values[code]), ticks: ticks.map((value) => [at(value), shown(value)]) };
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

// Pixels that the longest of some short texts takes.
function widest(texts) {
  return Math.max(0, ...texts.map((text) => text.length)) * 6.2;
}

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

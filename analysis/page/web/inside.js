// Inside a trial: matrices of its trained model as heat maps, with their values under the pointer.

import { data, draw, make, scales, shown } from "./data.js";

const SMALL = 24; // rows; a larger matrix is drawn as large as there is room
const NO_VALUE = 33;
const FIRST_LEVEL = 35;

// All matrices of a trial: the small ones that every trial has, and the larger ones if it stands for a cell.
export function matrices(trial, width) {
  const found = data.inside?.trials[trial] ?? [];
  const isSmall = ({ shape }) => Math.max(...shape) <= SMALL;
  const maps = found.map((matrix) => heatMap(matrix, isSmall(matrix) ? Math.min(190, (width - 12) / 2) : Math.min(340, width)));
  return maps.length ? make("div", { class: "matrices" }, ...maps) : null;
}

export function hasMatrices(trial) {
  return Boolean(data.inside?.trials[trial]);
}

function heatMap({ name, shape: [rows, wide], codes, levels, cut, low, high, shade, labels }, width) {
  const level = (place) => (codes.charCodeAt(place) - FIRST_LEVEL) / (levels - 1);
  const value = (place) => (codes.charCodeAt(place) === NO_VALUE ? NaN : low + (high - low) * level(place));
  const sign = (place) => (cut && level(place) === 0 ? "at most " : cut && level(place) === 1 ? "at least " : "");
  const [names, title] = [labels.map((place) => data.inside.labels[place]), labels.map((place) => data.inside.labels[place]?.title ?? "")];
  const left = title[0] || names[0] ? 34 : 4;
  const side = (width - left - 4) / wide;
  const height = Math.min(side, 26) * rows;
  const tall = height / rows;
  const box = { x: left, y: 2, width: side * wide, height };
  const image = draw("image", { ...box, href: picture(value, shade, [rows, wide]), preserveAspectRatio: "none", style: "image-rendering:pixelated" });
  const svg = draw("svg", { width, height: height + 34, class: "heat", tabindex: "0", role: "group" }, image, draw("rect", { ...box, class: "frame" }));
  svg.setAttribute("aria-label", `${name}: ${rows} by ${wide}, from ${shown(low)} to ${shown(high)}; arrow keys read values`);
  for (const [number, size, isDown] of [[0, tall, true], [1, side, false]]) {
    for (const { text, from, to } of bands(names[number]?.texts ?? [])) {
      const middle = ((from + to) / 2) * size;
      if (from) svg.append(draw("path", { d: isDown ? `M${box.x} ${box.y + from * size}h${box.width}` : `M${box.x + from * size} ${box.y}v${height}`, class: "band" }));
      if ((to - from) * size < (isDown ? 11 : 6.2 * text.length)) continue;
      const at = isDown ? { x: left - 3, y: box.y + middle + 4, class: "tick end" } : { x: left + middle, y: height + 14, class: "tick middle" };
      svg.append(draw("text", at, text));
    }
  }
  svg.append(draw("text", { x: left + box.width / 2, y: height + 28, class: "tick middle name" }, title[1]));
  const readout = make("p", { class: "readout", role: "status" });
  const cursor = draw("rect", { class: "pointed", width: Math.max(3, side), height: Math.max(3, tall), visibility: "hidden" });
  svg.append(cursor);
  let at = [0, 0];
  const label = (number, place) => [title[number], names[number]?.texts[place] ?? place + 1].filter((text) => text !== "").join(" ");
  const read = () => {
    cursor.setAttribute("x", box.x + at[1] * side);
    cursor.setAttribute("y", box.y + at[0] * tall);
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `${label(0, at[0])}, ${label(1, at[1])}: ${sign(at[0] * wide + at[1])}${shown(value(at[0] * wide + at[1]))}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const own = svg.getBoundingClientRect();
    const place = [Math.floor((event.clientY - own.top - box.y) / tall), Math.floor((event.clientX - own.left - left) / side)];
    if (place[0] < 0 || place[1] < 0 || place[0] >= rows || place[1] >= wide) return;
    at = place;
    read();
  });
  svg.addEventListener("keydown", (event) => {
    const turn = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!turn) return;
    at = [Math.min(rows - 1, Math.max(0, at[0] + turn[0])), Math.min(wide - 1, Math.max(0, at[1] + turn[1]))];
    event.preventDefault();
    read();
  });
  const scale = `${shown(shade[0], 2)} to ${shown(shade[1], 2)}`;
  const heading = make("figcaption", {}, make("b", {}, name), ` ${scale}`, title[0] ? `; rows: ${title[0]}` : "");
  return make("figure", { class: "chart", style: `width:${width}px` }, heading, svg, readout);
}

// Neighbours with the same label are a band: one label, and a line before it.
function bands(texts) {
  const found = [];
  texts.forEach((text, place) => {
    if (found.at(-1)?.text === text) found.at(-1).to = place + 1;
    else found.push({ text, from: place, to: place + 1 });
  });
  return found;
}

function picture(value, [dark, light], [rows, wide]) {
  const canvas = make("canvas", { width: wide, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(wide, rows);
  const scale = dark < 0 && light > 0 ? scales.PuOr : scales.cividis;
  for (let place = 0; place < rows * wide; place += 1) {
    const share = Math.min(1, Math.max(0, (value(place) - dark) / (light - dark || 1)));
    const from = 3 * Math.round(255 * share);
    image.data.set(Number.isNaN(share) ? [160, 160, 160, 255] : [...scale.subarray(from, from + 3), 255], 4 * place);
  }
  pen.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// The reader's choices in the address of the page: a link restores them.

import { brush, cellTrials, data, parts, settings, state } from "./data.js";
import { allCells } from "./map.js";

const PREFIX = "#map?";

// Cells are named by their first trial, settings by their values: both survive when the page is made again.
export function saveView() {
  const found = new URLSearchParams();
  const map = data.maps[state.map];
  if (state.colour !== data.colour) found.set("colour", state.colour);
  if (state.map) found.set("axes", `${map.x} ${map.y}`);
  for (const { name, texts } of settings) {
    for (const code of state.hidden.get(name) ?? []) found.append("hide", `${name} ${texts[code]}`);
  }
  for (const kind of state.hiddenClasses) found.append("class", data.classes[kind].name);
  for (const [name, [low, high]] of state.brushes) found.append("brush", `${low} ${high} ${name}`);
  if (state.pair) found.set("plot", state.pair.join(" "));
  if (state.open >= 0) found.set("cell", data.ids[cellTrials(state.open)[0]]);
  if (state.pinned >= 0) found.set("pin", data.ids[cellTrials(state.pinned)[0]]);
  if (!state.logSteps) found.set("steps", "linear");
  if (state.zoom) found.set("zoom", state.zoom.map((step) => Math.round(step)).join(" "));
  if (location.hash !== PREFIX + found) history.replaceState(null, "", PREFIX + found);
}

// Take the choices from the address; tell whether it has any.  What this page does not have is left out.
export function restoreView() {
  if (!location.hash.startsWith(PREFIX)) return false;
  const found = new URLSearchParams(location.hash.slice(PREFIX.length));
  const places = data.maps.findIndex(({ x, y }) => `${x} ${y}` === found.get("axes"));
  state.map = Math.max(0, places);
  state.colour = found.get("colour") ?? data.colour;
  state.hidden.clear();
  for (const { name, texts } of settings) {
    const own = found.getAll("hide").filter((text) => text.startsWith(`${name} `));
    const codes = own.map((text) => texts.indexOf(text.slice(name.length + 1)));
    state.hidden.set(name, new Set(codes.filter((code) => code >= 0)));
  }
  const hidden = found.getAll("class").map((name) => data.classes.findIndex((look) => look.name === name));
  state.hiddenClasses = new Set(hidden.filter((kind) => kind >= 0));
  for (const name of [...state.brushes.keys()]) brush(name, null);
  for (const text of found.getAll("brush")) {
    const [low, high, ...name] = text.split(" ");
    brush(name.join(" "), [Number(low), Number(high)]);
  }
  state.pair = found.get("plot")?.split(" ") ?? null;
  state.open = cellOf(found.get("cell"));
  state.pinned = cellOf(found.get("pin"));
  state.logSteps = found.get("steps") !== "linear";
  const zoom = found.get("zoom")?.split(" ").map(Number);
  state.zoom = zoom?.length === 2 && zoom[0] < zoom[1] ? zoom : null;
  if (found.get("cell") && state.open < 0) parts.status.textContent = "This page lacks the cell of the link.";
  return true;
}

// The cell of the map that is shown with a trial; -1 without one.
export function cellOf(id) {
  const trial = data.ids.indexOf(id ?? "");
  return trial < 0 ? -1 : (allCells().find((cell) => cellTrials(cell).includes(trial)) ?? -1);
}

// Moving over the map: hover, focus, arrow keys, clicks.

const REACH = 22; // pixels between a click and the cell that it means

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

// Tab leads to one cell of the map; arrow keys lead from there to the others.
function tabStop(element) {
  for (const other of parts.map.querySelectorAll(".cell[tabindex='0']")) other.setAttribute("tabindex", "-1");
  element?.setAttribute("tabindex", "0");
}

function focusCell(element) {
  tabStop(element);
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

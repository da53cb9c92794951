// One box of text beside the element that it explains.

function tipBox() {
  const found = document.querySelector(".tip");
  if (found) return found;
  const made = document.createElement("div");
  made.className = "tip";
  made.hidden = true;
  made.setAttribute("aria-hidden", "true");
  document.body.append(made);
  return made;
}

// Show lines of text, the first one bold, above the element or, without room there, below it.
export function showTip(lines, element) {
  const tip = tipBox();
  tip.replaceChildren(
    ...lines.map((line, number) => {
      const made = document.createElement(number ? "div" : "b");
      made.textContent = line;
      return made;
    }),
  );
  tip.hidden = false;
  const at = element.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(4, at.left), document.documentElement.clientWidth - own.width - 4);
  const above = at.top - own.height - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : at.bottom + 6}px`;
}

export function hideTip() {
  tipBox().hidden = true;
}

// What every page does: show its figures, which are compressed in it, and tell the meanings of its words.

import { canUnpack, unpacked } from "./unpack.js";
import { hideTip, showTip } from "./tip.js";

function tell(event) {
  const place = event.target.closest?.(".term")?.getAttribute("aria-describedby");
  const meaning = place && document.getElementById(place);
  if (!meaning) return false;
  showTip([meaning.previousElementSibling.textContent, meaning.textContent], event.target.closest(".term"));
  return true;
}

for (const [shown, hidden] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
  document.addEventListener(shown, tell);
  document.addEventListener(hidden, (event) => event.target.closest?.(".term") && hideTip());
}
document.addEventListener("click", (event) => {
  if (event.target.closest?.("a.term") && tell(event)) event.preventDefault(); // a finger cannot hover
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.more")) part.open = true;
});

for (const image of document.querySelectorAll("img[data-packed]")) {
  // A browser that cannot unpack the figures takes their files.
  if (canUnpack) {
    const { packed, kind } = image.dataset;
    image.src = URL.createObjectURL(await unpacked(packed, kind).blob());
  } else {
    image.src = image.closest("a").href;
  }
  delete image.dataset.packed;
}

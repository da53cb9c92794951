// What every page does: show its figures, tell the meanings of its words, search its runs.

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

// The index of runs: show those whose names, questions or settings have all the words that are typed.
const box = document.querySelector("#search input");
if (box) {
  const rows = [...document.querySelectorAll("tr[data-search]")];
  const search = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => hasWord(row.dataset.search.toLowerCase(), word));
    const left = rows.filter((row) => !row.hidden).length;
    box.closest("p").querySelector("span").textContent = words.length ? `${left} of ${rows.length} runs` : "";
  };
  box.addEventListener("input", search);
  box.closest("p").hidden = false;
  search();
}

// A setting with its value, name=value, must be there as a whole; of many values, their range counts.
function hasWord(text, word) {
  const [name, value] = word.split("=");
  if (!value) return text.includes(word);
  const own = text.split(/\s+/).filter((each) => each.startsWith(`${name}=`)).map((each) => each.slice(name.length + 1));
  return own.some((each) => {
    const [low, high] = each.split("..").map(Number);
    return each === value || Number(each) === Number(value) || (Number(value) >= low && Number(value) <= high);
  });
}

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

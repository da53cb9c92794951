// Show the figures, which are compressed in the page.  A browser that cannot unpack them takes their files.

import { canUnpack, unpacked } from "./unpack.js";

for (const image of document.querySelectorAll("img[data-packed]")) {
  if (canUnpack) {
    const { packed, kind } = image.dataset;
    image.src = URL.createObjectURL(await unpacked(packed, kind).blob());
  } else {
    image.src = image.closest("a").href;
  }
  delete image.dataset.packed;
}

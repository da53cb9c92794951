// The trials of the chosen cell: their classes, what to copy, the selection as a file.

const ENDS = { loss: "", order: "_order", norm: "_norm" };
const MOST_TRIALS = 24; // of a cell, as lines and in its list

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
  const verdict = `By the ${VIEWS[state.view]}: ${classText(cell)}`;
  parts.detail.replaceChildren(
    make("h3", { tabindex: "-1" }, heading),
    make("p", {}, `${verdict}. ${scoreTexts(cell).join("; ")}.${suffixText(cell.trials)}`),
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
  const varies = ({ code }) => cell.trials.some((trial) => code[trial] !== code[cell.trials[0]]);
  const others = settings.filter((setting) => setting.name !== "seed" && varies(setting));
  const named = [...settings.filter((setting) => setting.name === "seed"), ...others];
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
  for (const line of parts.detail.querySelectorAll(`[data-line="${trial}"]`)) {
    line.classList.toggle("bold", on);
  }
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

function csv(trials) {
  const cells = (value) => {
    const text = value === null || Number.isNaN(value) ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const columns = [["trial_id", (trial) => data.ids[trial]]];
  for (const { name, values, code } of settings) columns.push([name, (trial) => values[code[trial]]]);
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

// The table of runs: search as one types, rows that stay chosen, live rows that stay fresh.
import { gathered, refreshParts, root } from "./dom.js";

/** Between two looks at runs that are being written, in milliseconds. */
const PAUSE = 2000;

const chosen = new Set();
const search = document.getElementById("search");

function showChosen() {
  for (const box of document.querySelectorAll("input[name=run]")) box.checked = chosen.has(box.value);
  document.getElementById("compare").disabled = chosen.size === 0;
  document.getElementById("backtest").disabled = chosen.size === 0;
}

async function refresh() {
  const at = document.querySelector("tr.current a")?.getAttribute("href");
  await refreshParts("#live");
  if (at) document.querySelector(`tr a[href="${CSS.escape(at)}"]`)?.closest("tr").classList.add("current");
  showChosen();
}

document.addEventListener("change", (event) => {
  if (event.target.name !== "run") return;
  if (event.target.checked) chosen.add(event.target.value);
  else chosen.delete(event.target.value);
  showChosen();
});

// Rows chosen on another page of the table, or before a search, go along.
document.addEventListener("submit", (event) => {
  if (event.target.id !== "chosen") return;
  const present = new Set([...document.querySelectorAll("input[name=run]")].map((box) => box.value));
  for (const id of chosen) {
    if (present.has(id)) continue;
    const hidden = Object.assign(document.createElement("input"), { type: "hidden", name: "run", value: id });
    event.target.append(hidden);
  }
});

search.addEventListener(
  "input",
  gathered(() => {
    const query = new URLSearchParams(new FormData(search.form));
    history.replaceState(null, "", `${root}/?${query}`);
    refresh();
  }, 200),
);

setInterval(() => {
  const isLive = document.getElementById("live").dataset.live === "yes";
  if (isLive && document.visibilityState === "visible") refresh();
}, PAUSE);

for (const box of document.querySelectorAll("input[name=run]:checked")) chosen.add(box.value);
showChosen();

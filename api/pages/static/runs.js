// The table of runs. What it shows is in the address; the server renders it, and this script puts in what has changed.
import { complete } from "./completion.js";
import { address, ask, element, gathered, refreshParts, root, runPath } from "./dom.js";
import { takeActions } from "./run_actions.js";
import { select, selectedIds } from "./selection.js";
import { onChange, read, write } from "./state.js";
import { layOutColumns, prepareHeadings, showColumns } from "./table_columns.js";
import { showTimes } from "./times.js";

/** Between two looks at runs that are being written, and between two tries of a lost server at most, in milliseconds. */
const PAUSE = 2000;
const LONGEST_PAUSE = 30000;

/** Most runs that one page compares. */
const MOST_COMPARED = 500;

const FIRST = { where: "", sort: "-started", columns: "", pin: 0, group: "", open: [], selected: "", page: 1 };
read(FIRST);

const search = document.getElementById("search");
const group = document.getElementById("group");
const lost = document.getElementById("lost");
const most = Number(document.getElementById("picked").dataset.most);

// ---- The table follows the address --------------------------------------------------------------------------------

let asking = null;
let failures = 0;

const rowOf = (node) => node?.closest?.("tr[data-key]")?.dataset.key;

function prepare(page) {
  showTimes(page);
  prepareHeadings(page);
}

function showSelection() {
  const ids = selectedIds();
  const chosen = new Set(ids);
  const boxes = [...document.querySelectorAll("input[name=run]")];
  for (const box of boxes) box.checked = chosen.has(box.value);
  const whole = document.getElementById("whole");
  if (whole) {
    whole.hidden = !boxes.length; // Before this script runs it would do nothing, and groups have no box.
    whole.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    whole.indeterminate = !whole.checked && boxes.some((box) => box.checked);
  }
  document.getElementById("picked").classList.toggle("some", ids.length > 0);
  document.getElementById("picked-count").textContent = `${ids.length.toLocaleString("en")} selected`;
  const compare = document.getElementById("compare");
  compare.disabled = ids.length === 0 || ids.length > MOST_COMPARED;
  compare.title = ids.length > MOST_COMPARED ? `At most ${MOST_COMPARED} runs can be compared` : "";
  document.getElementById("backtest").disabled = ids.length === 0;
  for (const act of document.querySelectorAll("[data-act]")) act.disabled = act.dataset.act === "rename" ? ids.length !== 1 : !ids.length;
}

/** Say that the server does not answer, or no longer. */
function showLost(error) {
  failures = error ? failures + 1 : 0;
  lost.hidden = !error;
  lost.textContent = error ? `The table may be old: ${error}. It is asked for again.` : "";
}

async function refresh() {
  asking?.abort();
  const own = new AbortController();
  asking = own;
  let current, focused;
  // Read when the answer is there: the reader goes on while it is on its way.
  const remember = (fresh) => {
    current = rowOf(document.querySelector("tr.current"));
    focused = document.activeElement;
    prepare(fresh);
  };
  try {
    const isDone = await refreshParts("[data-part]", { signal: own.signal, prepare: remember });
    showLost(isDone ? null : "the server answers with an error");
  } catch (error) {
    if (own.signal.aborted) return;
    showLost("the server does not answer");
  }
  if (asking === own) asking = null;
  if (current) document.querySelector(`tr[data-key="${CSS.escape(current)}"]`)?.classList.add("current");
  // A row that moves to another place loses the focus on the way.
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  showSelection();
  layOutColumns();
  showColumns();
}

onChange((state, changed) => {
  if (document.activeElement !== search) search.value = state.where;
  if (document.activeElement !== group) group.value = state.group;
  if (changed.length === 1 && changed[0] === "selected") showSelection();
  refresh();
});

/** Follow a link of the table without leaving the page; the selection is the page's, which may be newer. */
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-go]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (link.id === "all") return selectAll(link);
  const { selected, ...state } = read({}, link.search);
  write(state);
});

async function watch() {
  const isLive = document.getElementById("live").dataset.live === "yes";
  if (document.visibilityState === "visible") {
    if (!asking && (isLive || failures)) await refresh();
    else showTimes(document);
  }
  setTimeout(watch, Math.min(LONGEST_PAUSE, PAUSE * 2 ** Math.min(failures, 4)));
}

// ---- The question -------------------------------------------------------------------------------------------------

/** Ask the question once it can be read; until then, what is wrong with it stands below. */
const question = gathered(async () => {
  const where = search.value;
  const { fault } = await ask(address("/api/v1/fields", { where, limit: 1 })).catch(() => ({ fault: null }));
  if (where !== search.value) return;
  if (fault) document.getElementById("fault").textContent = fault;
  else if (where === read().where) document.getElementById("fault").textContent = "";
  else write({ where, page: 1, open: [] });
}, 250);

search.addEventListener("input", question);
group.addEventListener("change", () => write({ group: group.value.trim(), open: [], page: 1 }));
search.form.addEventListener("submit", (event) => {
  event.preventDefault();
  write({ where: search.value, group: group.value.trim(), page: 1, open: [] });
});
complete(search);
complete(group, { isQuestion: false, done: () => group.dispatchEvent(new Event("change")) });

// ---- The selection ------------------------------------------------------------------------------------------------

let lastBox = null;

function showTooMany() {
  document.getElementById("fault").textContent = `A selection holds ${most.toLocaleString("en")} runs. Narrow the question.`;
  showSelection();
}

function pick(ids, isWanted) {
  if (!select(ids, isWanted, most)) showTooMany();
}

async function selectAll(link) {
  try {
    const answer = await fetch(link.href, { headers: { Accept: "text/html" } });
    const ids = new URLSearchParams(new URL(answer.url).search).get("selected");
    if (ids === "*") showTooMany();
    else write({ selected: ids ?? "" });
  } catch {
    showLost("the server does not answer");
  }
}

document.addEventListener("change", ({ target }) => {
  if (target.id === "whole") pick([...document.querySelectorAll("input[name=run]")].map((box) => box.value), target.checked);
  if (target.name === "run") pick([target.value], target.checked);
});

// With the shift key, a click selects all from the last one on.
document.addEventListener("click", (event) => {
  const box = event.target.closest?.("input[name=run]");
  if (!box) return;
  const boxes = [...document.querySelectorAll("input[name=run]")];
  const [from, to] = [boxes.findIndex((one) => one.value === lastBox), boxes.indexOf(box)].sort((a, b) => a - b);
  if (event.shiftKey && from >= 0) pick(boxes.slice(from, to + 1).map((one) => one.value), box.checked);
  lastBox = box.value;
});

document.getElementById("none").addEventListener("click", () => write({ selected: "" }));

// Selected runs of other pages go along.
document.addEventListener("submit", (event) => {
  if (event.target.id !== "chosen") return;
  event.target.querySelectorAll("input[type=hidden]").forEach((old) => old.remove());
  const present = new Set([...document.querySelectorAll("input[name=run]")].map((box) => box.value));
  for (const id of selectedIds()) {
    if (!present.has(id)) event.target.append(element("input", { type: "hidden", name: "run", value: id }));
  }
  const { group } = event.target.dataset;
  if (group && event.submitter?.id === "compare") event.target.append(element("input", { type: "hidden", name: "group", value: group }));
});

// ---- Saved views --------------------------------------------------------------------------------------------------

const VIEWS = "steptape-views";
const saved = document.getElementById("saved");

function views() {
  try {
    return JSON.parse(localStorage.getItem(VIEWS)) ?? {};
  } catch {
    return {}; // Something else wrote it.
  }
}

function keepViews(kept) {
  localStorage.setItem(VIEWS, JSON.stringify(kept));
  showViews();
}

function showViews() {
  const kept = Object.entries(views()).sort(([one], [other]) => one.localeCompare(other));
  document.getElementById("saved-views").replaceChildren(
    ...kept.map(([name, query]) =>
      element(
        "li",
        {},
        element("a", { class: "grow", href: `${root}/${query && `?${query}`}` }, name),
        element("button", { type: "button", class: "quiet", "aria-label": `Delete ${name}`, onclick: () => {
          const { [name]: _, ...others } = views();
          keepViews(others);
        } }, "×"),
      ),
    ),
  );
}

document.getElementById("views").addEventListener("click", () => {
  if (saved.open) return saved.close();
  showViews();
  saved.show();
});
document.getElementById("save-view").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams(location.search);
  query.delete("selected");
  query.delete("page");
  keepViews({ ...views(), [event.target.elements.name.value]: query.toString() });
  event.target.reset();
});

// ---- Why a run is in its state ------------------------------------------------------------------------------------

const why = element("div", { id: "why", role: "status", popover: "auto" });
document.body.append(why);

/** The state that was clicked last. */
let asked = null;

document.addEventListener("click", async ({ target }) => {
  const badge = target.closest?.("[data-why]");
  if (!badge) return;
  const run = badge.closest("tr").querySelector(".name a").getAttribute("href");
  asked = badge;
  const said = await ask(runPath(badge.dataset.why, "/headline")).catch((error) => ({ parts: [{ text: error.message, step: null }] }));
  if (asked !== badge) return;
  const parts = said.parts.map(({ text, step }) => (step === null ? text : element("a", { href: `${run}#step=${step}` }, text)));
  why.replaceChildren(element("p", {}, ...parts), element("a", { href: run }, "Open the run"));
  why.showPopover();
  const { left, bottom } = badge.getBoundingClientRect();
  why.style.left = `${Math.max(8, Math.min(left, innerWidth - why.offsetWidth - 8))}px`;
  why.style.top = `${bottom + 4}px`;
});

takeActions(refresh);
prepare(document);
// A reader may have ticked runs before this script came.
pick([...document.querySelectorAll("input[name=run]:checked")].map((box) => box.value), true);
showSelection();
layOutColumns();
setTimeout(watch, PAUSE);

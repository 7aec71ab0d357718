// The page that lays runs over each other: a panel for each metric, one legend for all of them, and one table.
import { GESTURES, curveOf, distinct, gapsOf, outsideButton, tellIfMissing } from "./chart.js";
import { PALETTE, TOLD_APART, stylesOf, swatchOf } from "./colours.js";
import { showControls, takeControls } from "./controls.js";
import { address, ask, element, pageData, shown, toNumber } from "./dom.js";
import { chartOf, layOut, onSeen, plots, visible } from "./panels.js";
import { onChange, problems, read as readState, write } from "./state.js";

const { runs, metrics, leading } = pageData();
const by = (id) => document.getElementById(id);
const styles = stylesOf(runs.map((run) => run.id));
const byId = new Map(runs.map((run) => [run.id, run]));

/** Points of each curve, fewer beyond fifty runs, so that the page stays light. */
const POINTS = Math.max(40, Math.min(800, Math.floor(40000 / Math.max(1, runs.length))));

/** The fewest points that the API returns: they hold the last value and both extremes. */
const FEWEST = 4;

/** Between two looks at runs that are being written, and at a server that did not answer, in milliseconds. */
const PAUSE = Math.max(2000, 40 * runs.length);
const AGAIN = 5000;

/** How the runs are looked at: what the address says, else this. `sort` is a column of the table, from its greatest value with a minus. */
let state = readState({
  run: [], where: "", metric: leading ?? "", axis: "step", x: "", smooth: 0, log: false, logx: false, search: "", pin: [], hide: [],
  from: null, to: null, size: "medium", order: "recorded", sort: "",
});

const panels = metrics.map((metric) => ({ key: `metric ${metric}`, title: metric, isFamily: false, word: "", members: [{ metric }] }));
const isShown = (id) => !state.hide.includes(id);

// ---- Curves -------------------------------------------------------------------------------------------------------

let requests = 0;
let waiting = null;

const asked = (more) => ({ run: runs.map((run) => run.id), axis: state.axis, x: state.axis === "metric" ? state.x : null, ...more });

const seriesOf = async (metric, more) => (await ask(address("/api/v1/series", asked({ metric, ...more })))).items;

/** Read the series of these panels and draw them. An answer that comes after that of a newer request is dropped. */
async function read(wanted) {
  const request = ++requests;
  const more = { points: POINTS, smooth: state.smooth || null, from: state.from, to: state.to };
  await Promise.all([...wanted.map(async (plot) => {
    const items = await seriesOf(plot.metric, more);
    if (plot.answered >= request) return;
    plot.answered = request;
    plot.items = distinct(items.filter((item) => item.step.length));
    plot.isRead = true;
    show(plot);
  }), readValues(request)]).then(() => say(""), (error) => {
    const isLost = error.status === undefined;
    say(isLost ? "The server does not answer. What is shown is what it said last." : error.message);
    if (isLost) waiting ??= setTimeout(() => ((waiting = null), read(visible())), AGAIN);
  });
}

function show(plot) {
  const shownItems = plot.items.filter((item) => isShown(item.run_id));
  const kinds = Map.groupBy(plot.items, (item) => item.run_id);
  const nameOf = (item) => byId.get(item.run_id).name + (kinds.get(item.run_id).length > 1 ? ` (${item.kind})` : "");
  const curves = shownItems.map((item) => curveOf(sorted(item), { name: nameOf(item), ...styles.get(item.run_id), isPlain: item.x.length > 60 }));
  const lacking = runs.filter((run) => !kinds.has(run.id));
  const said = () => [
    ...(lacking.length ? [element("span", { title: lacking.map((run) => run.name).join(", ") }, lacking.length <= 3 ? `no values: ${lacking.map((run) => run.name).join(", ")}` : `${shown(lacking.length)} of ${shown(runs.length)} runs have no values`)] : []),
  ];
  plot.legend = null; // One legend serves all panels.
  const onDrawn = (view) => plot.note.replaceChildren(...said(), ...[outsideButton(view, plot.isWhole, () => widen(plot))].filter(Boolean));
  const { axis, x, log, logx, from, to } = state;
  chartOf(plot, { onZoom: (low, high) => write({ from: low, to: high }) }).draw({
    curves, axis, xName: x, marks: shownItems.flatMap((item) => lostAt(item, nameOf(item))), isLog: log, isLogX: logx, zoom: [from, to], isWhole: plot.isWhole, onDrawn,
  });
}

/** Where the values of a run stop being finite, in its colour; further ones of many runs would be a band of crosses. */
function lostAt(item, name) {
  const [first, ...more] = gapsOf(item, `${name}, `);
  return first ? [{ ...first, ...styles.get(item.run_id), text: first.text + (more.length ? " and later" : "") }] : [];
}

/** On an axis of another metric, a curve runs along it and not along time. */
function sorted(item) {
  if (state.axis !== "metric") return item;
  const places = item.x.map((_, index) => index).sort((one, other) => item.x[one] - item.x[other]);
  const along = (list) => list && places.map((index) => list[index]);
  return { ...item, x: along(item.x), step: along(item.step), value: along(item.value), smoothed: along(item.smoothed) };
}

function widen(plot) {
  plot.isWhole = !plot.isWhole;
  show(plot);
}

/** What a legend of many runs must say of itself. */
const REPEATED = runs.length > TOLD_APART ? "colours repeat: point at a curve for its run" : runs.length > PALETTE.length ? "runs of one colour differ in their dashes" : "";

const say = (text) => (by("legend").textContent = text || [REPEATED, globalThis.uPlot && GESTURES].filter(Boolean).join("   "));

const redraw = () => visible().filter((plot) => plot.isRead).forEach(show);

function showPanels() {
  layOut(metrics, state.metric, state, () => panels);
}

// ---- Legend -------------------------------------------------------------------------------------------------------

/** A button for each run: a click hides or shows it, a double click or one with Shift isolates it. */
function showLegend() {
  const press = (event, id) => {
    const others = runs.map((run) => run.id).filter((one) => one !== id);
    const isAlone = isShown(id) && !others.some(isShown);
    if (event.shiftKey || event.detail === 2) write({ hide: isAlone ? [] : others });
    else write({ hide: isShown(id) ? [...state.hide, id] : state.hide.filter((one) => one !== id) });
  };
  if (!by("names").childElementCount) {
    const all = element("button", { type: "button", class: "quiet", id: "all", onclick: () => write({ hide: [] }) }, "Show all");
    by("names").append(...runs.map(({ id, name }) => {
      return element("button", {
        type: "button", class: "quiet", "data-run": id, title: "Click: hide or show. Double click, or Shift and click: this one alone",
        onclick: (event) => press(event, id), onpointerenter: () => embolden(id), onpointerleave: () => embolden(null),
      }, swatchOf(styles.get(id)), name);
    }), all);
  }
  for (const button of by("names").querySelectorAll("[data-run]")) button.setAttribute("aria-pressed", String(isShown(button.dataset.run)));
  by("all").hidden = !state.hide.length;
}

/** Draw a run above the others in all panels. */
function embolden(id) {
  for (const { chart } of visible()) chart?.embolden(chart.view?.curves.find((curve) => curve.item.run_id === id) ?? null);
}

// ---- Table --------------------------------------------------------------------------------------------------------

/** Last, least and greatest value of each run: of the whole run, and of the part in view. */
const values = { whole: new Map(), view: new Map() };
const COLUMNS = ["last", "least", "greatest"];

async function readValues(request) {
  const isZoomed = state.from !== null;
  const [whole, view] = await Promise.all([
    seriesOf(state.metric, { points: FEWEST }),
    isZoomed ? seriesOf(state.metric, { points: FEWEST, from: state.from, to: state.to }) : [],
  ]);
  if (request < requests) return;
  values.whole = sums(whole);
  values.view = sums(view);
  showTable();
}

function sums(items) {
  const found = new Map();
  for (const item of items.filter((one) => one.value.length)) {
    if ((found.get(item.run_id)?.n ?? 0) >= item.n_raw) continue;
    const all = item.value.map(toNumber);
    const finite = all.filter(Number.isFinite);
    const [least, greatest] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [null, null];
    found.set(item.run_id, { n: item.n_raw, last: all.at(-1), least, greatest });
  }
  return found;
}

/** What a run has in a column, to be sorted by. */
function cellOf(run, column) {
  const [group, name] = [column.slice(0, column.indexOf(".")), column.slice(column.indexOf(".") + 1)];
  return { config: () => run.config[name], whole: () => values.whole.get(run.id)?.[name], view: () => values.view.get(run.id)?.[name], run: () => run[name] }[group]?.();
}

/** Numbers by size, then texts; what is missing or NaN comes last in both directions. */
function ordered(column, isDown) {
  const rank = (value) => (value === null || value === undefined || Number.isNaN(value) ? 2 : typeof value === "number" ? 0 : 1);
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return [...runs].sort((one, other) => {
    const [a, b] = [cellOf(one, column), cellOf(other, column)];
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    if (rank(a) === 2) return 0;
    const by = rank(a) === 0 ? a - b : text(a).localeCompare(text(b), "en", { numeric: true });
    return isDown ? -by : by;
  });
}

function showTable() {
  const table = by("table");
  const isZoomed = state.from !== null;
  for (const cell of table.querySelectorAll("[data-view]")) cell.hidden = !isZoomed;
  for (const run of runs) {
    const row = table.querySelector(`tr[data-run="${CSS.escape(run.id)}"]`);
    row.classList.toggle("off", !isShown(run.id));
    for (const name of COLUMNS) {
      row.querySelector(`.${name}`).textContent = text(values.whole.get(run.id)?.[name]);
      row.querySelector(`.${name}-in-view`).textContent = text(values.view.get(run.id)?.[name]);
    }
  }
  const isDown = state.sort.startsWith("-");
  const column = isDown ? state.sort.slice(1) : state.sort;
  for (const heading of table.querySelectorAll("th[data-column]")) {
    const is = heading.dataset.column === column;
    if (is) heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  }
  const rows = new Map([...table.querySelectorAll("tr[data-run]")].map((row) => [row.dataset.run, row]));
  table.tBodies[0].append(...(column ? ordered(column, isDown) : runs).map((run) => rows.get(run.id)));
}

const text = (value) => (value === null || value === undefined ? "–" : shown(value));

// ---- Begin --------------------------------------------------------------------------------------------------------

/** What must be read anew, laid out anew, or only drawn anew, when the reader changes it. */
const READ = new Set(["axis", "x", "smooth", "from", "to", "metric"]);
const LAID_OUT = new Set(["search", "pin", "size", "order", "metric"]);
const CONTROLS = ["metric", "axis", "x", "smooth", "log", "logx", "search", "size", "order"];

onChange((now, changed) => {
  state = now;
  showControls(CONTROLS.filter((one) => changed.includes(one)), state);
  showLegend();
  showTable();
  if (changed.some((name) => LAID_OUT.has(name))) showPanels();
  if (changed.some((name) => READ.has(name))) read(visible());
  if (!changed.every((name) => LAID_OUT.has(name) || name === "sort")) redraw();
});

function takeTable() {
  by("table").addEventListener("click", (event) => {
    const column = event.target.closest("th[data-column]")?.dataset.column;
    if (column && event.target.closest("button")) write({ sort: state.sort === column ? `-${column}` : column });
  });
  by("table").addEventListener("click", (event) => event.target.closest(".remove") && remove(event.target.closest("tr").dataset.run));
}

/** The page without a run; what a question found are runs of their own then. */
function remove(id) {
  const left = new URLSearchParams(location.search);
  left.delete("run");
  left.delete("where");
  for (const run of runs) if (run.id !== id) left.append("run", run.id);
  location.search = left.toString();
}

if (runs.length && metrics.length) {
  by("problems").replaceChildren(...problems().map((sentence) => element("p", { class: "notice" }, sentence)));
  takeControls(CONTROLS, () => metrics.find((one) => one !== state.metric) ?? metrics[0]);
  takeTable();
  showControls(CONTROLS, state);
  showLegend();
  tellIfMissing(by("plots").parentElement);
  onSeen(read);
  showPanels();
  if (runs.some((run) => run.live)) setInterval(() => document.visibilityState === "visible" && read(visible()), PAUSE);
}

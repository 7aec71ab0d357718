// The page that lays runs over each other: a panel for each metric, one legend for all of them, and one table.
import { GESTURES, curveOf, distinct, gapsOf, outsideButton, tellIfMissing } from "./chart.js";
import { Configurations } from "./configurations.js";
import { PALETTE, TOLD_APART, stylesOf, swatchOf } from "./colours.js";
import { showControls, takeControls } from "./controls.js";
import { address, ask, counted, element, pageData, shown, toNumber } from "./dom.js";
import { chartOf, layOut, onSeen, plots, visible } from "./panels.js";
import { onChange, problems, read as readState, write } from "./state.js";

const { runs, metrics, leading } = pageData();
const by = (id) => document.getElementById(id);
const byId = new Map(runs.map((run) => [run.id, run]));

/** Points of each of so many curves, fewer beyond fifty, so that the page stays light. */
const pointsOf = (curves) => Math.max(40, Math.min(800, Math.floor(40000 / Math.max(1, curves))));

/** The fewest points that the API returns: they hold the last value and both extremes. */
const FEWEST = 4;

/** Between two looks at runs that are being written, and at a server that did not answer, in milliseconds. */
const PAUSE = Math.max(2000, 40 * runs.length);
const AGAIN = 5000;

/** How the runs are looked at: what the address says, else this. `sort` is a column of the table, from its greatest value with a minus. */
let state = readState({
  run: [], where: "", metric: leading ?? "", axis: "step", x: "", smooth: 0, log: false, logx: false, search: "", pin: [], hide: [],
  from: null, to: null, size: "medium", order: "recorded", sort: "", group: [], members: false, baseline: "",
  result: "last", across: "", axes: [], brush: [], chosen: "",
});

/** What the curves are of: the runs, or groups of them. Each has an id, a name, and the ids of its runs. */
const ofRuns = runs.map(({ id, name }) => ({ id, name, runs: [id], label: name }));
let subjects = ofRuns;
let styles = stylesOf(runs.map((run) => run.id));

/** The fields by which `subjects` are grouped, as JSON: those of the state once the server has answered. */
let groupedBy = "[]";

const isGrouped = () => groupedBy !== "[]";
const baseline = () => (state.baseline ? subjects.find((one) => one.runs.some((id) => id === state.baseline || byId.get(id).name === state.baseline)) : undefined);

const panels = metrics.map((metric) => ({ key: `metric ${metric}`, title: metric, isFamily: false, word: "", members: [{ metric }] }));

/** Whether a run or group is drawn; a brush filters runs, and changes no mean of a group. */
const isShown = (id) => !state.hide.includes(id) && (!byId.has(id) || (configurations?.passes(byId.get(id), state.brush) ?? true));

// ---- Curves -------------------------------------------------------------------------------------------------------

let requests = 0;
let waiting = null;

const asked = (more) => ({ run: runs.map((run) => run.id), axis: state.axis, x: state.axis === "metric" ? state.x : null, ...more });

const seriesOf = async (metric, more) => (await ask(address("/api/v1/series", asked({ metric, ...more })))).items;

/** Take the groups from an answer about them: each has all groups, also those without values. */
function regroup(items, fields) {
  if (fields === groupedBy) return;
  const found = new Map(items.map((item) => [item.group, item]));
  subjects = fields === "[]" ? ofRuns : [...found.values()].map((item) => ({ id: item.group, name: item.group, runs: item.runs, label: `${item.group} · ${counted(item.n_runs, "run")}` }));
  styles = stylesOf(subjects.map((one) => one.id));
  groupedBy = fields;
  by("names").replaceChildren();
  showLegend();
  showBaseline();
  showTable();
}

/** The mean of a group as a series. */
const meanOf = (item) => ({ ...item, run_id: item.group, value: item.mean, step: item.axis === "step" ? item.x : [] });

/** Read the series of these panels and draw them. An answer that comes after that of a newer request is dropped. */
async function read(wanted) {
  const request = ++requests;
  const more = { smooth: state.smooth || null, from: state.from, to: state.to, baseline: state.baseline };
  const [fields, isOfGroups] = [JSON.stringify(state.group), state.group.length > 0];
  await Promise.all([...wanted.map(async (plot) => {
    const [items, members] = await Promise.all([
      seriesOf(plot.metric, { ...more, group: state.group, points: pointsOf(isOfGroups ? 1 : runs.length) }),
      isOfGroups && state.members ? seriesOf(plot.metric, { ...more, baseline: null, points: pointsOf(runs.length) }) : [],
    ]);
    if (plot.answered >= request) return;
    if (fields !== JSON.stringify(state.group)) return;
    plot.answered = request;
    regroup(items, fields);
    plot.items = distinct((isGrouped() ? items.map(meanOf) : items).filter((item) => item.x.length));
    plot.members = distinct(members.filter((item) => item.x.length));
    plot.groupedBy = groupedBy;
    plot.isRead = true;
    show(plot);
  }), readValues(request)]).then(() => (say(""), readVerdict()), (error) => {
    const isLost = error.status === undefined;
    say(isLost ? "The server does not answer. What is shown is what it said last." : error.message);
    if (isLost) waiting ??= setTimeout(() => ((waiting = null), read(visible())), AGAIN);
  });
}

function show(plot) {
  if (plot.groupedBy !== groupedBy) return; // It is read anew.
  const shownItems = plot.items.filter((item) => isShown(item.run_id));
  const kinds = Map.groupBy(plot.items, (item) => item.run_id);
  const nameOf = (item) => subjects.find((one) => one.id === item.run_id).name + (kinds.get(item.run_id).length > 1 ? ` (${item.kind})` : "");
  const curves = shownItems.map((item) => {
    const style = { name: nameOf(item), ...styles.get(item.run_id), isPlain: item.x.length > 60 };
    return curveOf(sorted(item), isGrouped() ? { ...style, ...spreadOf(item) } : style);
  });
  const lacking = subjects.filter((one) => !kinds.has(one.id));
  const base = baseline();
  const said = () => [
    ...(base ? [element("span", {}, `difference to ${base.name}`)] : []),
    ...(lacking.length ? [element("span", { title: lacking.map((one) => one.name).join(", ") }, lacking.length <= 3 ? `no values: ${lacking.map((one) => one.name).join(", ")}` : `${shown(lacking.length)} of ${counted(subjects.length, isGrouped() ? "group" : "run")} have no values`)] : []),
  ];
  plot.legend = null; // One legend serves all panels.
  const onDrawn = (view) => plot.note.replaceChildren(...said(), ...[outsideButton(view, plot.isWhole, () => widen(plot))].filter(Boolean));
  const { axis, x, log, logx, from, to } = state;
  const marks = shownItems.flatMap((item) => (isGrouped() ? fewerAt(item) : lostAt(item, nameOf(item))));
  chartOf(plot, { onZoom: (low, high) => write({ from: low, to: high }) }).draw({
    curves: [...membersOf(plot), ...curves], axis, xName: x, marks, isLog: log && !base, isLogX: logx, zoom: [from, to], isWhole: plot.isWhole, onDrawn,
  });
}

/** The band of a group's curve, from one deviation below the mean to one above, and what its label says. */
function spreadOf(item) {
  const [mean, deviation] = [item.mean.map(toNumber), item.deviation.map(toNumber)];
  const ends = (sign) => mean.map((value, index) => value + sign * deviation[index]);
  const of = (index) => (item.count[index] < item.n_runs ? `${item.count[index]} of ${item.n_runs}` : item.count[index]);
  return {
    band: [ends(-1), ends(1)],
    width: 2,
    said: (index) => `${shown(mean[index])}${Number.isFinite(deviation[index]) ? ` ± ${shown(Number(deviation[index].toPrecision(2)))}` : ""}, n ${of(index)}`,
  };
}

/** The runs of the groups, faint, in the colours of their groups. */
function membersOf(plot) {
  if (!isGrouped() || !state.members || baseline()) return [];
  return plot.members.flatMap((item) => {
    const own = subjects.find((one) => one.runs.includes(item.run_id));
    return own && isShown(own.id) ? [curveOf({ ...item, value: item.smoothed ?? item.value, smoothed: null }, { name: byId.get(item.run_id).name, ...styles.get(own.id), opacity: 0.3, width: 1, isPlain: true })] : [];
  });
}

/** Places from which on fewer runs of a group have a value, as marks in its colour. */
function fewerAt(item) {
  const { count, n_runs: runs, group } = item;
  return item.x.flatMap((x, index) => {
    if (!index || count[index] >= count[index - 1]) return [];
    return [{ kind: "fewer", x, ...styles.get(group), text: `${group}: ${count[index]} of ${counted(runs, "run")} from here on` }];
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

/** What a legend must say of itself. */
function aboutLegend() {
  const what = isGrouped() ? "group" : "run";
  const repeated = subjects.length > TOLD_APART ? `colours repeat: point at a curve for its ${what}` : subjects.length > PALETTE.length ? `${what}s of one colour differ in their dashes` : "";
  const lines = isGrouped() ? `lines: means of each group${state.smooth ? "'s smoothed runs" : ""}; bands: one sample deviation to each side; squares: fewer runs from there on` : "";
  const base = baseline();
  return [base && `differences to ${base.label} at the same place`, lines, repeated].filter(Boolean);
}

const say = (text) => (by("legend").textContent = text || [...aboutLegend(), globalThis.uPlot && GESTURES].filter(Boolean).join("   "));

const redraw = () => visible().filter((plot) => plot.isRead).forEach(show);

function showPanels() {
  layOut(metrics, state.metric, state, () => panels);
}

// ---- Legend -------------------------------------------------------------------------------------------------------

/** A button for each run or group: a click hides or shows it, a double click or one with Shift isolates it. */
function showLegend() {
  const press = (event, id) => {
    const others = subjects.map((one) => one.id).filter((one) => one !== id);
    const isAlone = isShown(id) && !others.some(isShown);
    if (event.shiftKey || event.detail === 2) write({ hide: isAlone ? [] : others });
    else write({ hide: isShown(id) ? [...state.hide, id] : state.hide.filter((one) => one !== id) });
  };
  if (!by("names").childElementCount) {
    const all = element("button", { type: "button", class: "quiet", id: "all", onclick: () => write({ hide: [], brush: [] }) }, "Show all");
    by("names").append(...subjects.map(({ id, label }) => {
      return element("button", {
        type: "button", class: "quiet", "data-run": id, title: "Click: hide or show. Double click, or Shift and click: this one alone",
        onclick: (event) => press(event, id), onpointerenter: () => embolden(id), onpointerleave: () => embolden(null),
      }, swatchOf(styles.get(id)), label);
    }), all);
  }
  for (const button of by("names").querySelectorAll("[data-run]")) button.setAttribute("aria-pressed", String(isShown(button.dataset.run)));
  by("all").hidden = !state.hide.length && !state.brush.length;
}

/** Draw a run above the others in all panels. */
function embolden(id) {
  for (const { chart } of visible()) chart?.embolden(chart.view?.curves.find((curve) => curve.item.run_id === id) ?? null);
}

// ---- Groups and baseline ------------------------------------------------------------------------------------------

/** The fields in the menu: those that the server offers, and others of the address. */
function showGrouping() {
  const list = by("grouping").querySelector("div");
  const boxes = () => [...list.querySelectorAll("input")];
  for (const field of state.group) {
    if (!boxes().some((box) => box.value === field)) list.append(element("label", {}, element("input", { type: "checkbox", name: "group-key", value: field }), ` ${field}`));
  }
  for (const box of boxes()) box.checked = state.group.includes(box.value);
  by("grouped").textContent = state.group.map((field) => field.replace(/^config\./, "")).join(", ") || "nothing";
  by("with-members").hidden = !state.group.length || Boolean(state.baseline);
}

/** The runs or groups to choose from, a group by its first run. */
function showBaseline() {
  const chosen = baseline()?.runs[0] ?? "";
  by("baseline").replaceChildren(element("option", { value: "" }, "none"), ...subjects.map((one) => element("option", { value: one.runs[0] }, one.name)));
  by("baseline").value = chosen;
  by("log").disabled = Boolean(state.baseline);
}

function takeGrouping() {
  by("grouping").addEventListener("change", () => {
    write({ group: [...by("grouping").querySelectorAll("input:checked")].map((box) => box.value), hide: [], baseline: "" });
  });
  by("baseline").addEventListener("change", () => write({ baseline: by("baseline").value }));
}

// ---- Configurations ------------------------------------------------------------------------------------------------

/** Axes that are drawn unasked: keys of fewer values than runs first. */
const MOST_AXES = 7;

const KEYS = runs.length ? Object.keys(runs[0].config) : [];

function firstAxes() {
  const isName = (key) => new Set(runs.map((run) => JSON.stringify(run.config[key]))).size === runs.length && runs.every((run) => typeof run.config[key] === "string");
  return [...KEYS].sort((one, other) => Number(isName(one)) - Number(isName(other))).slice(0, MOST_AXES);
}

const axesNow = () => (state.axes.length ? state.axes.filter((key) => KEYS.includes(key)) : firstAxes());

const configurations = by("parallel") && new Configurations({ parallel: by("parallel"), scatter: by("scatter") }, () => ({
  runs, keys: axesNow(), across: KEYS.includes(state.across) ? state.across : axesNow()[0], brushes: state.brush, chosen: state.chosen, isKnown: values.isKnown,
  result: `${state.result} ${state.metric}`, resultOf: (run) => values.whole.get(run.id)?.[state.result] ?? null, isShown: (run) => isShown(run.id),
}), {
  onPoint: (run) => embolden(run && (isGrouped() ? subjects.find((one) => one.runs.includes(run.id))?.id : run.id)),
  onChoose: (run) => write({ chosen: run && run.id !== state.chosen ? run.id : "" }),
  onBrush: (brush) => write({ brush }),
});

function showConfigurations() {
  if (!configurations) return;
  configurations.draw();
  by("chosen-run").replaceChildren(...configurations.chosenFacts());
  by("across").value = configurations.view.across;
  for (const box of by("axes").querySelectorAll("input")) box.checked = configurations.view.keys.includes(box.value);
}

function takeConfigurations() {
  if (!configurations) return;
  by("across").addEventListener("change", () => write({ across: by("across").value }));
  by("axes").addEventListener("change", () => write({ axes: [...by("axes").querySelectorAll("input:checked")].map((box) => box.value) }));
}

// ---- Verdict ------------------------------------------------------------------------------------------------------

/** Of what the verdict is, and since when: of live runs it is asked for again after a minute, as it reads all of their events. */
let judged = "";
let judgedAt = 0;
const JUDGED_FOR = 60_000;

/** What `steptape compare` says of each group beside the baseline; of two groups, the older one is the baseline unasked. */
async function readVerdict() {
  const asked = JSON.stringify([groupedBy, state.baseline]);
  if (judged === asked && (!runs.some((run) => run.live) || Date.now() - judgedAt < JUDGED_FOR)) return;
  [judged, judgedAt] = [asked, Date.now()];
  const place = by("verdict");
  if (!isGrouped() || subjects.length < 2) return place.replaceChildren();
  if (!baseline() && subjects.length > 2) return place.replaceChildren(element("p", { class: "faint" }, "Choose a baseline to see which groups are better, and whether the runs can tell."));
  const { items } = await ask(address("/api/v1/comparisons", { run: runs.map((run) => run.id), group: state.group, baseline: state.baseline })).catch((error) => ({ items: [{ sentence: error.message, verdict: null, explanations: [] }] }));
  if (judged !== asked) return;
  place.replaceChildren(...items.flatMap(({ sentence, verdict, explanations, baseline: a, candidate: b }, index) => [
    element("p", { class: verdict === null ? "faint" : index ? "more" : null }, sentence),
    ...(explanations.length ? [element("details", {}, element("summary", { class: "faint" }, `How it was judged: A is ${a}, B is ${b}`), explanations.map((line) => element("p", {}, line)))] : []),
  ]));
}

// ---- Table --------------------------------------------------------------------------------------------------------

/** Last, least and greatest value of each run: of the whole run, and of the part in view. */
const values = { whole: new Map(), view: new Map(), isKnown: false };
const COLUMNS = ["last", "least", "greatest"];

/** Mean and sample deviation of the finite ones of some values, and their number; null without any. */
function statisticsOf(all) {
  const found = all.filter(Number.isFinite);
  if (!found.length) return null;
  const mean = found.reduce((sum, value) => sum + value / found.length, 0);
  const deviation = found.length > 1 ? Math.sqrt(found.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (found.length - 1)) : null;
  return { mean, deviation, n: found.length };
}

/** Statistics of a value over the runs of a group. */
const overRuns = ({ runs: ids }, part, name) => statisticsOf(ids.map((id) => values[part].get(id)?.[name] ?? NaN));

/** How much the last value of a run or group is above that of the baseline, also relative to it. */
function differenceOf(last) {
  const base = baseline();
  const from = base && overRuns(base, "whole", "last")?.mean;
  if (!Number.isFinite(from) || !Number.isFinite(last)) return {};
  return { difference: last - from, relative: from === 0 ? undefined : (100 * (last - from)) / Math.abs(from) };
}

async function readValues(request) {
  const isZoomed = state.from !== null;
  const [whole, view] = await Promise.all([
    seriesOf(state.metric, { points: FEWEST }),
    isZoomed ? seriesOf(state.metric, { points: FEWEST, from: state.from, to: state.to }) : [],
  ]);
  if (request < requests) return;
  values.whole = sums(whole);
  values.view = sums(view);
  values.isKnown = true;
  showConfigurations();
  showTable();
  if (state.brush.length) {
    showLegend();
    redraw();
  }
}

function sums(items) {
  const found = new Map();
  for (const item of items.filter((one) => one.value.length)) {
    if ((found.get(item.run_id)?.n ?? 0) >= item.n_raw) continue;
    const all = item.value.map(toNumber);
    const finite = all.filter(Number.isFinite);
    const [least, greatest] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [null, null];
    found.set(item.run_id, { n: item.n_raw, last: all.at(-1), at: item.step.at(-1), least, greatest });
  }
  return found;
}

/** What a run has in a column, to be sorted by. */
function cellOf(run, column) {
  const [group, name] = [column.slice(0, column.indexOf(".")), column.slice(column.indexOf(".") + 1)];
  return { config: () => run.config[name], whole: () => values.whole.get(run.id)?.[name], view: () => values.view.get(run.id)?.[name], base: () => differenceOf(values.whole.get(run.id)?.last)[name], run: () => run[name] }[group]?.();
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
  const [isZoomed, base] = [state.from !== null, baseline()];
  for (const cell of table.querySelectorAll("[data-view]")) cell.hidden = !isZoomed;
  for (const cell of table.querySelectorAll("[data-base]")) cell.hidden = !base;
  for (const run of runs) {
    const row = table.querySelector(`tr[data-run="${CSS.escape(run.id)}"]`);
    const own = values.whole.get(run.id);
    row.classList.toggle("off", !isShown(run.id));
    row.classList.toggle("current", run.id === state.chosen);
    for (const name of COLUMNS) {
      row.querySelector(`.${name}`).textContent = text(own?.[name]);
      row.querySelector(`.${name}-in-view`).textContent = text(values.view.get(run.id)?.[name]);
    }
    showDifference(row, differenceOf(own?.last), base, isGrouped() ? null : [own?.at]);
  }
  const isDown = state.sort.startsWith("-");
  const column = isDown ? state.sort.slice(1) : state.sort;
  for (const heading of table.querySelectorAll("th[data-column]")) {
    const is = heading.dataset.column === column;
    if (is) heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  }
  const rows = new Map([...table.querySelectorAll("tr[data-run]")].map((row) => [row.dataset.run, row]));
  const inOrder = column ? ordered(column, isDown) : runs;
  table.querySelectorAll("tr[data-group]").forEach((row) => row.remove());
  const grouped = isGrouped() ? groupsInOrder(inOrder).flatMap((one) => [groupRow(one, base), ...inOrder.filter((run) => one.runs.includes(run.id)).map((run) => rows.get(run.id))]) : [];
  table.tBodies[0].append(...(grouped.length ? grouped : inOrder.map((run) => rows.get(run.id))));
}

/** The groups in the order of their first runs. */
const groupsInOrder = (inOrder) => [...new Set(inOrder.map((run) => subjects.find((one) => one.runs.includes(run.id))))].filter(Boolean);

/** A row of means and deviations over the runs of a group. */
function groupRow(one, base) {
  const row = by("table").querySelector("tr[data-run]").cloneNode(true);
  delete row.dataset.run;
  Object.assign(row.dataset, { group: one.id });
  row.className = `grouped${isShown(one.id) ? "" : " off"}`;
  const headings = [...by("table").querySelectorAll("thead th")];
  const members = one.runs.map((id) => byId.get(id));
  [...row.children].forEach((cell, index) => cell.replaceChildren(sharedBy(members, headings[index].dataset.column ?? "")));
  row.querySelector(".name").append(swatchOf(styles.get(one.id)), element("b", {}, one.name), element("span", { class: "faint" }, ` ${counted(one.runs.length, "run")}`));
  for (const name of COLUMNS) {
    row.querySelector(`.${name}`).textContent = spread(overRuns(one, "whole", name), one.runs.length);
    row.querySelector(`.${name}-in-view`).textContent = spread(overRuns(one, "view", name), one.runs.length);
  }
  showDifference(row, differenceOf(overRuns(one, "whole", "last")?.mean), base, one.runs.map((id) => values.whole.get(id)?.at));
  return row;
}

/** What all runs of a group have in a column of the configuration, and the range of their steps; else nothing. */
function sharedBy(members, column) {
  const all = members.map((run) => cellOf(run, column));
  if (column === "run.steps") return rangeOf(all);
  const isShared = column.startsWith("config.") && new Set(all.map((value) => JSON.stringify(value))).size === 1;
  return isShared && all[0] !== null ? shown(all[0]) : "";
}

function rangeOf(numbers) {
  const [least, greatest] = [Math.min(...numbers), Math.max(...numbers)];
  return least === greatest ? shown(least) : `${shown(least)} to ${shown(greatest)}`;
}

/** A difference, and the steps of the values where they are known and are not those of the baseline. */
function showDifference(row, { difference, relative }, base, ends) {
  const steps = (all) => [...new Set(all.filter((step) => step !== undefined))].sort((one, other) => one - other);
  const [own, its] = [steps(ends ?? []), base ? steps(base.runs.map((id) => values.whole.get(id)?.at)) : []];
  const isElsewhere = ends !== null && difference !== undefined && own.join() !== its.join();
  row.querySelector(".difference").replaceChildren(signed(difference), ...(isElsewhere ? [element("span", { class: "faint" }, ` step ${rangeOf(own)}, baseline ${rangeOf(its)}`)] : []));
  row.querySelector(".relative").textContent = relative === undefined ? "–" : `${signed(Number(relative.toPrecision(3)))}%`;
}

const signed = (value) => (value === undefined ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${shown(Math.abs(value))}`);

/** Mean and deviation in words, and of how many runs where some lack the value. */
function spread(found, runs) {
  if (!found) return "–";
  const deviation = found.deviation === null ? "" : ` ± ${shown(Number(found.deviation.toPrecision(2)))}`;
  return shown(found.mean) + deviation + (found.n < runs ? ` (${found.n} of ${runs})` : "");
}

const text = (value) => (value === null || value === undefined ? "–" : shown(value));

// ---- Begin --------------------------------------------------------------------------------------------------------

/** What must be read anew, or laid out anew, when the reader changes it; else it is drawn anew. Old values under a new heading would mislead. */
const READ = new Set(["axis", "x", "smooth", "from", "to", "metric", "group", "members", "baseline"]);
const DRAWN = new Set(["result", "across", "axes", "brush", "chosen", "hide"]);
const OTHER_VALUES = new Set(["group", "members", "baseline"]);
const LAID_OUT = new Set(["search", "pin", "size", "order", "metric"]);
const CONTROLS = ["metric", "axis", "x", "smooth", "log", "logx", "search", "size", "order", "members", ...(by("result") ? ["result"] : [])];

onChange((now, changed) => {
  state = now;
  showControls(CONTROLS.filter((one) => changed.includes(one)), state);
  showGrouping();
  showBaseline();
  if (changed.some((name) => DRAWN.has(name))) showConfigurations();
  showLegend();
  showTable();
  if (changed.some((name) => LAID_OUT.has(name))) showPanels();
  if (changed.some((name) => READ.has(name))) read(visible());
  if (!changed.every((name) => LAID_OUT.has(name) || name === "sort") && !changed.some((name) => OTHER_VALUES.has(name))) redraw();
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
  if (baseline()?.runs.includes(id)) left.delete("baseline");
  for (const run of runs) if (run.id !== id) left.append("run", run.id);
  location.search = left.toString();
}

if (runs.length && metrics.length) {
  by("problems").replaceChildren(...problems().map((sentence) => element("p", { class: "notice" }, sentence)));
  takeControls(CONTROLS, () => metrics.find((one) => one !== state.metric) ?? metrics[0]);
  takeTable();
  takeGrouping();
  takeConfigurations();
  showControls(CONTROLS, state);
  showGrouping();
  showBaseline();
  showLegend();
  tellIfMissing(by("plots").parentElement);
  onSeen(read);
  showPanels();
  if (runs.some((run) => run.live)) setInterval(() => document.visibilityState === "visible" && read(visible()), PAUSE);
}

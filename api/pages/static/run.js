// The page of a run: its curves with what happened drawn on them, the samples behind a spike, decisions; live if it is.
import { address, ask, counted, element, gathered, isTouch, pageData, percent, refreshParts, root, runPath, shown, table, toNumber } from "./dom.js";
import { offerSteps, showAnnotations, takeAnnotations, takeRequests } from "./notes.js";
import { depthBar, drawFamilyHeat, linesOf, nameOf, pointsOf, seriesOf } from "./family_plots.js";
import { layOut, onSeen, plots, visible } from "./panels.js";
import { phaseMarks, showPhases } from "./phases.js";
import { COLOURS, POINTS, distinct, draw, firingsOf, gapsOf, lineOf, marksOf, onZoom, shapesOf } from "./plots.js";
import { takeVectors } from "./vectors.js";

const run = pageData();
const axis = document.getElementById("axis");
const log = document.getElementById("log");
const search = document.getElementById("search");
const look = document.getElementById("look");

/** Whether families are heat maps, as the reader chose on any run. */
const LOOK = "steptape-families";

/** Series in one request. */
const MOST_SERIES = 100;

/** Decisions that the table shows, and so many more behind a click. */
const LISTED = 12;
const LISTED_IN_ALL = 500;

/** Between two looks at a live run, in milliseconds. */
const PAUSE = 700;

const facts = { decisions: [], saves: [], epochs: [], annotations: [], phases: [], errors: [] };
let metrics = run.metrics;

// ---- What happened to the run -------------------------------------------------------------------------------------

const values = (decision) =>
  Object.entries(decision.values)
    .map(([name, value]) => `${name} = ${shown(value)}`)
    .join(", ");

/** What the loop answered to the operations of decisions, by the event that each was decided at. */
const answersOf = (receipts) =>
  new Map(
    receipts.map(({ event, attempt, attrs }) => [
      `${attrs.from_attempt ?? attempt} ${attrs.event_seq} ${attrs.operation}`,
      event === "operation_applied" ? "applied" : `refused: ${attrs.reason}`,
    ]),
  );

/** The operations of a decision: flags by their last word, others whole, with what the loop answered. */
const ordersOf = (decision, answers) =>
  decision.operations
    .map((operation) => {
      const answer = answers.get(`${decision.attempt} ${decision.event_seq} ${operation}`);
      const order = operation.includes("(") ? operation : operation.split(".").at(-1);
      return answer ? `${order}: ${answer}` : order;
    })
    .join("; ");

async function readFacts() {
  const eventsOf = (kind) => ask(address(runPath(run.id, "/events"), { kind, limit: 2000 }));
  const [decided, saves, epochs, noted, applied, refused] = await Promise.all([
    ask(address(runPath(run.id, "/decisions"), { limit: 10000 })),
    eventsOf("save"),
    eventsOf("epoch_begin"),
    ask(runPath(run.id, "/annotations")),
    eventsOf("operation_applied"),
    eventsOf("operation_refused"),
  ]);
  const answers = answersOf([...applied.items, ...refused.items]);
  facts.decisions = decided.items.map((item) => ({
    ...item,
    orders: ordersOf(item, answers),
    isStop: item.operations.some((operation) => operation.endsWith("should_training_stop")),
    text: `step ${item.step}: ${item.controller}${item.mode === "shadow" ? " (shadow)" : ""}, ${values(item)}`,
  }));
  facts.errors = decided.rule_errors;
  facts.phases = phaseMarks();
  facts.saves = saves.items.map((event) => ({ step: event.step, text: `checkpoint, step ${event.step}` }));
  facts.epochs = epochs.items.map((event, index) => ({ step: event.step, text: `epoch ${index + 1} begins` }));
  facts.annotations = noted.items
    .filter((item) => item.first_step !== null)
    .map((item) => ({ step: item.first_step, last: item.last_step ?? item.first_step, text: item.text }));
  showAnnotations(noted.items);
  showDecisions();
}

function showDecisions() {
  const newest = facts.decisions.slice(-LISTED_IN_ALL).reverse();
  const says = newest.some((item) => item.message);
  const rows = newest.map((item) => {
    return [
      shown(item.step),
      element("span", { class: `severity ${item.severity ?? ""}` }, item.controller ?? "–"),
      item.mode === "shadow" ? `shadow (${item.orders})` : item.orders,
      element("code", {}, values(item)),
      ...(says ? [item.message ?? ""] : []),
    ];
  });
  const headings = ["step", "controller", "operations", "because", ...(says ? ["message"] : [])];
  const listed = (part) => table(headings, part, [1, 2, 3, 4]);
  const place = document.getElementById("decisions");
  const wasOpen = place.querySelector("details")?.open ?? false;
  const parts = [rows.length ? listed(rows.slice(0, LISTED)) : element("p", { class: "faint" }, "No rule has fired.")];
  if (rows.length > LISTED) {
    const count = `${counted(rows.length - LISTED, "earlier decision")} of ${shown(facts.decisions.length)}`;
    parts.push(element("details", { open: wasOpen }, element("summary", {}, count), listed(rows.slice(LISTED))));
  }
  for (const error of facts.errors) {
    parts.push(element("p", { class: "notice" }, `The rule of ${error.controller} failed, first at step ${error.step}: ${error.error}`));
  }
  place.replaceChildren(...parts);
  showLegend();
}

function showLegend() {
  const said = [
    facts.decisions.length && `▼ ${counted(facts.decisions.length, "decision")}`,
    facts.annotations.length && `◆ ${counted(facts.annotations.length, "annotation")}`,
    facts.saves.length && `ticks below: ${counted(facts.saves.length, "checkpoint")}`,
    facts.phases.length && `squares below: ${counted(facts.phases.length, "span")}`,
    facts.epochs.length && `ticks above: ${counted(facts.epochs.length, "epoch")}`,
    run.attempts.length && `dashed: ${counted(run.attempts.length, "resume")}`,
    !isTouch && "drag to zoom, double-click to reset",
  ].filter(Boolean);
  say(said.join("   "));
}

// ---- Curves -------------------------------------------------------------------------------------------------------

let requests = 0;

/**
 * Read the series of these plots and draw them; few requests for all that show the same part of the run. An answer that
 * comes after that of a newer request is dropped.
 */
async function read(wanted) {
  const request = ++requests;
  const alike = Map.groupBy(wanted, (plot) => JSON.stringify([plot.zoom, plot.panel.isFamily]));
  await Promise.all(
    [...alike.values()].flatMap(packed).map(async (group) => {
      const items = await seriesFor(group);
      for (const plot of group.filter((asking) => asking.answered < request)) {
        plot.answered = request;
        const names = new Set(plot.panel.members.map((member) => member.metric));
        show(plot, items.filter((item) => names.has(item.metric)));
      }
    }),
  ).catch((error) => say(error.message));
}

/** Plots in batches whose series fit in one request; one with more has a batch of its own. */
function packed(wanted) {
  const batches = [];
  let room = -1;
  for (const plot of wanted) {
    const count = plot.panel.members.length;
    if (count > room) {
      batches.push([]);
      room = MOST_SERIES;
    }
    batches.at(-1).push(plot);
    room -= count;
  }
  return batches;
}

async function seriesFor(group) {
  const names = group.flatMap((plot) => plot.panel.members.map((member) => member.metric));
  const points = group[0].panel.isFamily ? Math.min(...group.map((plot) => pointsOf(plot.panel.members.length))) : POINTS;
  const [from, to] = group[0].zoom;
  const parts = Array.from({ length: Math.ceil(names.length / MOST_SERIES) }, (_, index) => names.slice(index * MOST_SERIES, (index + 1) * MOST_SERIES));
  const answers = await Promise.all(parts.map((metric) => ask(address(runPath(run.id, "/series"), { metric, axis: axis.value, points, from, to }))));
  return answers.flatMap((answer) => answer.items);
}

function show(plot, items) {
  if (plot.panel.isFamily) showFamily(plot, items);
  else showMetric(plot, items);
  // A family is not drawn while it has no values: they are on their way, or in another part of the run.
  if (!plot.listens && plot.div.on) listen(plot);
}

function showMetric(plot, items) {
  const filled = distinct(items.filter((item) => item.step.length));
  plot.items = filled;
  const longest = filled.reduce((best, item) => (item.step.length > (best?.step.length ?? 0) ? item : best), null);
  const traces = filled.map((item, index) => lineOf(item, { colour: COLOURS[index], name: filled.length > 1 ? item.kind : plot.metric }));
  let shapes = [];
  if (longest) {
    const [decisions, saves, epochs, annotations, phases] = [facts.decisions, facts.saves, facts.epochs, facts.annotations, facts.phases].map((marks) => marks.filter(withinOf(longest)));
    const isMain = plot.isLeading;
    traces.push(...decisionsOn(longest));
    if (isMain) traces.push(...firingsOf(longest, decisions));
    if (saves.length && (isMain || filled[0].kind === "evaluate")) traces.push(marksOf("save", longest, saves));
    if (isMain && epochs.length) traces.push(marksOf("epoch", longest, epochs));
    if (isMain && phases.length) traces.push(marksOf("phase", longest, phases));
    if (annotations.length) traces.push(marksOf("annotation", longest, annotations));
    const gaps = filled.flatMap(gapsOf);
    if (gaps.length) traces.push(marksOf("gap", longest, gaps));
    shapes = shapesOf(longest, { decisions, attempts: run.attempts, spans: annotations });
  }
  plot.note.replaceChildren(...captionOf(plot, filled, longest));
  draw(plot.div, traces, { shapes, log: log.checked, axis: axis.value });
  plot.figure.dataset.points = String(longest?.n_raw ?? 0);
  if (longest && plot.isLeading && looked === null) lookAround(largestJump(longest));
}

/** A family: a line for each member, or a heat map. */
function showFamily(plot, items) {
  plot.items = items;
  const members = seriesOf(plot.panel, items);
  if (!members.length) return;
  const longest = members.map((member) => member.item).reduce((best, item) => (item.step.length > best.step.length ? item : best));
  const said = isHeat() ? drawFamilyHeat(plot.div, members, axis.value, decisionsOn(longest)) : drawFamilyLines(plot, members, longest);
  if (kindsOf(items).size > 1) said.push([`values of ${longest.kind} events`]);
  plot.note.replaceChildren(...said.map((parts) => element("span", {}, parts)));
  plot.figure.dataset.points = String(longest.n_raw);
}

/** The decisions within a series as a trace of marks, if there are any. */
function decisionsOn(item) {
  const decisions = facts.decisions.filter(withinOf(item));
  return decisions.length ? [marksOf("decision", item, decisions)] : [];
}

const withinOf = (item) => (mark) => mark.step >= item.step[0] && mark.step <= item.step.at(-1);

function drawFamilyLines(plot, members, longest) {
  const [decisions, annotations] = [facts.decisions, facts.annotations].map((marks) => marks.filter(withinOf(longest)));
  const traces = [...linesOf(members), ...decisionsOn(longest)];
  if (annotations.length) traces.push(marksOf("annotation", longest, annotations));
  const gaps = members.flatMap((member) => gapsOf(member.item).map((gap) => ({ ...gap, text: `${nameOf(member)}, ${gap.text}` })));
  if (gaps.length) traces.push(marksOf("gap", longest, gaps));
  draw(plot.div, traces, { shapes: shapesOf(longest, { decisions, attempts: run.attempts, spans: annotations }), log: log.checked, axis: axis.value, hover: "closest" });
  const isSampled = members.some((member) => member.item.sampled);
  return [depthBar(members), ...(isSampled ? [[`downsampled from ${shown(longest.n_raw)} values each, extremes kept`]] : [])];
}

const kindsOf = (items) => new Set(items.filter((item) => item.step.length).map((item) => item.kind));

const isHeat = () => look.querySelector("input[value=heat]").checked;

/** What stands beside a metric's name: its last value, which colour is which kind of event, and whether all is drawn. */
function captionOf(plot, items, longest) {
  const said = items.map((item, index) => {
    const last = plot.zoom[0] === null ? shown(toNumber(item.value.at(-1))) : "";
    if (items.length === 1) return [last];
    const swatch = element("i", { class: "swatch" });
    swatch.style.background = COLOURS[index];
    return [swatch, `${item.kind} ${last}`];
  });
  if (items.some((item) => item.sampled)) said.push([`downsampled from ${shown(longest.n_raw)} values, extremes kept`]);
  return said.filter((parts) => parts.join("")).map((parts) => element("span", {}, parts));
}

/** The step at which a series rises most from one value to the next: where a reader would look first. */
function largestJump(item) {
  const rises = item.value.map((value, index) => (index ? toNumber(value) - toNumber(item.value[index - 1]) : 0));
  const finite = rises.map((rise) => (Number.isFinite(rise) ? rise : 0));
  return item.step[finite.indexOf(Math.max(...finite))];
}

function listen(plot) {
  plot.listens = true;
  onZoom(plot.div, (from, to) => {
    for (const other of plots.values()) other.zoom = [from, to];
    for (const other of plots.values()) if (other !== plot && other.listens) follow(other, from, to);
    if (axis.value === "step") offerSteps(from, to);
    read(visible());
  });
  plot.div.on("plotly_hover", (event) => lookAround(event.points[0].customdata));
  plot.div.on("plotly_click", (event) => lookAround(event.points[0].customdata, true));
}

/** Bring another plot to the part of the run that this one was zoomed to. */
function follow(plot, from, to) {
  const ends = from === null ? { "xaxis.autorange": true } : { "xaxis.range": [from, to], "yaxis.autorange": true };
  globalThis.Plotly.update(plot.div, {}, ends);
}

/** Lay out the panels; figures whose members have changed are drawn again. */
function showPanels() {
  look.hidden = !layOut(metrics, run.leading, search.value);
  const stale = visible().filter((plot) => plot.isStale);
  for (const plot of stale) plot.isStale = false;
  if (stale.length) read(stale);
}

// ---- Samples ------------------------------------------------------------------------------------------------------

let held = null;
let looked = null;

const lookAround = gathered(async (step, isClick = false) => {
  const place = document.getElementById("around");
  if (!place || step === undefined || (held !== null && !isClick) || step === looked) return;
  held = isClick ? step : held;
  looked = step;
  const title = document.getElementById("around-title");
  try {
    const { items } = await ask(address(runPath(run.id, "/samples/spike"), { step, top: 12 }));
    if (looked !== step) return;
    title.textContent = `Samples of step ${shown(step)}`;
    const rows = items.map((item) => [
      element("code", {}, item.sample_id ?? `#${item.position}`),
      shown(toNumber(item.loss)),
      shown(toNumber(item.typical)),
      element("span", { class: "share" }, element("b", {}, percent(item.share, 0)), element("i", { "data-share": String(Number(item.share) || 0) })),
      shown(item.seen),
    ]);
    place.replaceChildren(
      items.length
        ? table(["sample", "loss", "typical", "share of the excess", "seen before"], rows, [0, 3])
        : element("p", { class: "faint" }, `No sample loss was recorded at step ${shown(step)}.`),
      items.length ? element("p", { class: "faint legend" }, "Typical: the median sample loss of the steps before. Excess: the loss above typical.") : "",
      held === null ? "" : element("button", { type: "button", class: "quiet", onclick: () => (held = null) }, `Step ${shown(step)} stays selected. Release it`),
    );
    for (const bar of place.querySelectorAll("[data-share]")) bar.style.width = `${Math.min(60, 60 * Number(bar.dataset.share))}px`;
  } catch (error) {
    place.replaceChildren(element("p", { class: "faint" }, error.message));
  }
}, 120);

async function readFragment(place) {
  const answer = await fetch(place.dataset.fragment);
  if (!answer.ok) {
    place.replaceChildren(element("p", { class: "faint" }, place.dataset.failed));
    return;
  }
  const part = new DOMParser().parseFromString(await answer.text(), "text/html");
  place.replaceChildren(...part.body.childNodes);
}

const readFragments = () => Promise.all([...document.querySelectorAll("[data-fragment]")].map(readFragment));

// ---- Live ---------------------------------------------------------------------------------------------------------

function say(text) {
  document.getElementById("legend").textContent = text;
}

/** What a live run has written since: curves, marks, and the parts that the server renders. */
const refresh = gathered(async () => {
  if (document.visibilityState !== "visible") return;
  await refreshParts("[data-region]");
  showPhases();
  await readFacts();
  const known = new Set(metrics);
  const { metrics: now } = await ask(runPath(run.id));
  if (now.some((metric) => !known.has(metric.name))) {
    metrics = now.map((metric) => metric.name);
    run.leading ??= metrics[0];
    showPanels();
  }
  await read(visible());
}, PAUSE);

function followLive() {
  const source = new EventSource(root + runPath(run.id, "/tail"));
  source.addEventListener("message", refresh);
  source.addEventListener("end", () => {
    source.close();
    refresh();
    readFragments();
  });
}

// ---- Begin --------------------------------------------------------------------------------------------------------

axis.addEventListener("change", () => {
  for (const plot of plots.values()) plot.zoom = [null, null];
  read(visible());
});
log.addEventListener("change", () => read(visible()));
search.addEventListener("input", gathered(showPanels, 150));
look.addEventListener("change", () => {
  localStorage.setItem(LOOK, isHeat() ? "heat" : "lines");
  for (const plot of visible()) if (plot.panel.isFamily) show(plot, plot.items);
});
const reread = async () => {
  await readFacts();
  await read(visible());
};
takeAnnotations(run.id, reread);
takeRequests(run.id, reread);
document.addEventListener("themechange", () => visible().forEach((plot) => show(plot, plot.items)));

onSeen(read);
takeVectors(run.id);
showPhases();
if (localStorage.getItem(LOOK) === "heat") look.querySelector("input[value=heat]").checked = true;
await readFacts().catch((error) => say(error.message));
showPanels();
readFragments();
if (run.live) followLive();

// The page of a run: its curves with what happened drawn on them, the samples behind a spike, decisions; live if it is.
import { GESTURES, curveOf, distinct, gapsOf, outsideButton, placeOf, ringsOf, standing, tellIfMissing } from "./chart.js";
import { PALETTE, colourOf, swatchOf } from "./colours.js";
import { showControls, takeControls } from "./controls.js";
import { address, ask, counted, element, gathered, pageData, percent, refreshParts, root, runPath, shown, table, toNumber } from "./dom.js";
import { curvesOf, depthBar, drawFamilyHeat, nameOf, pointsOf, seriesOf } from "./family_plots.js";
import { offerSteps, showAnnotations, takeAnnotations, takeRequests } from "./notes.js";
import { chartOf, layOut, onSeen, plots, visible } from "./panels.js";
import { phaseMarks, showPhases } from "./phases.js";
import { onChange, problems, read as readState, write } from "./state.js";

const run = pageData();
const by = (id) => document.getElementById(id);
const look = by("look");

/** Points of the leading curve and of others: about as many as a plot is wide in pixels; the API keeps extremes. */
const POINTS = 1200;
const FEWER = 500;

/** Series in one request. */
const MOST_SERIES = 100;

/** Decisions that the table shows, and so many more behind a click. */
const LISTED = 12;
const LISTED_IN_ALL = 500;

/** Between two looks at the facts of a live run, and at the parts that the server renders, in milliseconds. */
const PAUSE = 700;
const SLOW = 5000;

/** Before a server that did not answer is asked again, in milliseconds. */
const LOST_AGAIN = 5000;

/** Events of a live run that are kept for curves that are read meanwhile. */
const TAIL = 2000;

/** How the curves are looked at: what the address says, else this. */
let state = readState({
  axis: "step", x: "", smooth: 0, log: false, logx: false, search: "", pin: [], from: null, to: null, size: "medium", order: "recorded", family: "lines",
});

/** Between two looks at the head of a live run, whose headline ages without an event. */
const AGED = 30_000;

/** Until a part of the page that is not complete yet is read again, in milliseconds. */
const AGAIN = 1_000;

/** Steps on each side of one that a link of the headline names. */
const AROUND = 50;

const facts = { decisions: [], saves: [], epochs: [], annotations: [], phases: [], errors: [], isCut: false };
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

let askedFacts = 0;

async function readFacts() {
  const mine = ++askedFacts;
  const eventsOf = (kind) => ask(address(runPath(run.id, "/events"), { kind, limit: 2000 }));
  const [decided, saves, epochs, noted, applied, refused] = await Promise.all([
    ask(address(runPath(run.id, "/decisions"), { limit: 10000 })),
    eventsOf("save"),
    eventsOf("epoch_begin"),
    ask(runPath(run.id, "/annotations")),
    eventsOf("operation_applied"),
    eventsOf("operation_refused"),
  ]);
  if (mine !== askedFacts) return;
  const answers = answersOf([...applied.items, ...refused.items]);
  facts.decisions = decided.items.map((item) => ({
    ...item,
    orders: ordersOf(item, answers),
    isStop: item.operations.some((operation) => operation.endsWith("should_training_stop")),
    text: `step ${item.step}: ${item.controller}${item.mode === "shadow" ? " (shadow)" : ""}, ${values(item)}`,
  }));
  facts.errors = decided.rule_errors;
  facts.isCut = decided.next !== null;
  facts.phases = phaseMarks();
  facts.saves = saves.items.map((event) => ({ step: event.step, text: `checkpoint, step ${event.step}` }));
  facts.epochs = epochs.items.map((event, index) => ({ step: event.step, text: `epoch ${index + 1} begins` }));
  facts.annotations = noted.items
    .filter((item) => item.first_step !== null)
    .map((item) => ({ step: item.first_step, last: item.last_step ?? item.first_step, text: item.text }));
  showAnnotations(noted.items);
  showDecisions();
}

/** Decisions with those of one rule at consecutive steps as one, which says its first's values and its last's step. */
function folded(decisions) {
  const newest = new Map();
  const rows = [];
  for (const item of decisions) {
    const key = JSON.stringify([item.controller, item.mode, item.orders, item.attempt, item.member]);
    const row = newest.get(key);
    if (row && item.step - row.last <= 1) row.last = item.step;
    else {
      rows.push({ ...item, last: item.step });
      newest.set(key, rows.at(-1));
    }
  }
  return rows;
}

function showDecisions() {
  const all = folded(facts.decisions);
  const newest = all.slice(-LISTED_IN_ALL).reverse();
  const says = newest.some((item) => item.message);
  const rows = newest.map((item) => {
    return [
      item.last > item.step ? `${shown(item.step)} to ${shown(item.last)}` : shown(item.step),
      element("span", { class: `severity ${item.severity ?? ""}` }, item.controller ?? "–"),
      item.mode === "shadow" ? `shadow (${item.orders})` : item.orders,
      element("code", {}, values(item)),
      ...(says ? [item.message ?? ""] : []),
    ];
  });
  const headings = ["step", "rule", "operations", "because", ...(says ? ["message"] : [])];
  const listed = (part) => table(headings, part, [1, 2, 3, 4]);
  const place = document.getElementById("decisions");
  const wasOpen = place.querySelector("details")?.open ?? false;
  const parts = [rows.length ? listed(rows.slice(0, LISTED)) : element("p", { class: "faint" }, "No rule has fired.")];
  if (rows.length > LISTED) {
    const count = `${counted(rows.length - LISTED, "earlier row")} of ${shown(all.length)}`;
    parts.push(element("details", { open: wasOpen }, element("summary", {}, count), listed(rows.slice(LISTED))));
  }
  if (facts.isCut) parts.push(element("p", { class: "notice" }, `These are the first ${counted(facts.decisions.length, "decision")}; the run has more.`));
  for (const error of facts.errors) {
    parts.push(element("p", { class: "notice" }, `Rule ${error.controller} failed, first at step ${error.step}: ${error.error}`));
  }
  place.replaceChildren(...parts);
  showLegend();
}

function showLegend() {
  if (isLost) return;
  const said = [
    facts.decisions.length && `▼ ${counted(facts.decisions.length, "decision")}`,
    facts.annotations.length && `◆ ${counted(facts.annotations.length, "annotation")}`,
    facts.saves.length && `ticks below: ${counted(facts.saves.length, "checkpoint")}`,
    facts.phases.length && `squares below: ${counted(facts.phases.length, "span")}`,
    facts.epochs.length && `ticks above: ${counted(facts.epochs.length, "epoch")}`,
    run.attempts.length && `dashed: ${counted(run.attempts.length, "resume")}`,
    globalThis.uPlot && GESTURES,
  ].filter(Boolean);
  say(said.join("   "));
}

// ---- Curves -------------------------------------------------------------------------------------------------------

let requests = 0;

/**
 * Read the series of these plots and draw them; few requests for all. An answer that comes after that of a newer request
 * is dropped.
 */
async function read(wanted) {
  const request = ++requests;
  const alike = Map.groupBy(wanted, (plot) => `${plot.panel.isFamily} ${isFine(plot)}`);
  await Promise.all(
    [...alike.values()].flatMap(packed).map(async (group) => {
      const items = await seriesFor(group);
      for (const plot of group.filter((asking) => asking.answered < request)) {
        plot.answered = request;
        const names = new Set(plot.panel.members.map((member) => member.metric));
        plot.items = items.filter((item) => names.has(item.metric));
        catchUp(plot.items);
        if (state.from === null) plot.last = new Map(plot.items.map((item) => [item.kind, toNumber(item.value.at(-1))]));
        show(plot);
      }
    }),
  ).then(() => showLost(null), showLost);
}

/** Whether a plot is as wide as the page. */
const isFine = (plot) => plot.isLeading || state.size === "large";

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
  const points = group[0].panel.isFamily ? Math.min(...group.map((plot) => pointsOf(plot.panel.members.length))) : isFine(group[0]) ? POINTS : FEWER;
  const parts = Array.from({ length: Math.ceil(names.length / MOST_SERIES) }, (_, index) => names.slice(index * MOST_SERIES, (index + 1) * MOST_SERIES));
  const asked = { axis: state.axis, x: state.axis === "metric" ? state.x : null, smooth: state.smooth || null, points, from: state.from, to: state.to };
  const answers = await Promise.all(parts.map((metric) => ask(address(runPath(run.id, "/series"), { metric, ...asked }))));
  return answers.flatMap((answer) => answer.items);
}

const isHeat = () => state.family === "heat";

function show(plot) {
  const isMap = plot.panel.isFamily && isHeat();
  plot.div.hidden = isMap;
  if (plot.map) plot.map.hidden = !isMap;
  if (plot.panel.isFamily) showFamily(plot);
  else showMetric(plot);
}

/** What all panels share: the axis, the part of it that is shown, and how. */
const shared = (plot) => ({
  axis: state.axis, xName: state.x, isLog: state.log, isLogX: state.logx, zoom: [state.from, state.to], isWhole: plot.isWhole,
});

/** Draw what stands on a panel: curves, and marks placed by its longest series. */
function drawOn(plot, curves, longest, { marks = [], rings = [], says }) {
  const decisions = facts.decisions.filter(withinOf(longest));
  const annotations = facts.annotations.filter(withinOf(longest));
  const placed = [
    ...decisions.map((mark) => ({ ...mark, kind: "decision" })),
    ...annotations.map((mark) => ({ ...mark, kind: "annotation" })),
    ...marks,
  ].map((mark) => ({ ...mark, x: placeOf(longest, mark.step) }));
  const onDrawn = (view) => plot.note.replaceChildren(...says().map((parts) => element("span", {}, parts)), ...[outsideButton(view, plot.isWhole, () => widen(plot))].filter(Boolean), ...ruleLink(plot));
  chartOf(plot, eventsOf(plot)).draw({
    ...shared(plot), curves, rings, marks: placed, ...standing(longest, { decisions, attempts: run.attempts, annotations }), onDrawn,
  });
  plot.figure.dataset.points = String(longest.n_raw);
}

function widen(plot) {
  plot.isWhole = !plot.isWhole;
  show(plot);
}

function showMetric(plot) {
  const filled = distinct(plot.items.filter((item) => item.step.length));
  if (!filled.length) {
    plot.note.replaceChildren();
    return chartOf(plot, eventsOf(plot)).draw({ ...shared(plot), curves: [] });
  }
  const longest = filled.reduce((best, item) => (item.step.length > best.step.length ? item : best));
  const shades = shadesOf(filled.length);
  const curves = filled.map((item, index) => curveOf(item, { colour: shades[index], name: filled.length > 1 ? item.kind : plot.metric }));
  const isMain = plot.isLeading;
  const marked = [
    ["save", facts.saves, isMain || filled[0].kind === "evaluate"],
    ["epoch", facts.epochs, isMain],
    ["phase", facts.phases, isMain],
  ].flatMap(([kind, marks, is]) => (is ? marks.filter(withinOf(longest)).map((mark) => ({ ...mark, kind })) : []));
  drawOn(plot, curves, longest, { marks: [...marked, ...filled.flatMap((item) => gapsOf(item))], rings: ringsOf(longest, facts.decisions), says: () => captionOf(plot, filled, shades) });
  if (isMain && looked === null) lookAround(largestJump(longest));
}

/** The colour of the run, then others. */
function shadesOf(count) {
  const own = colourOf(run.id);
  return [own, ...PALETTE.filter((shade) => shade !== own)].slice(0, count);
}

/** A family: a line for each member, or a heat map. */
function showFamily(plot) {
  const members = seriesOf(plot.panel, plot.items);
  if (!members.length) return;
  const longest = members.map((member) => member.item).reduce((best, item) => (item.step.length > best.step.length ? item : best));
  const kinds = new Set(plot.items.filter((item) => item.step.length).map((item) => item.kind));
  const also = kinds.size > 1 ? [[`values of ${longest.kind} events`]] : [];
  const isSampled = members.some((member) => member.item.sampled);
  const says = () => [depthBar(members), ...(isSampled ? [[`downsampled from ${shown(longest.n_raw)} values each, extremes kept`]] : []), ...also];
  if (!isHeat()) return drawOn(plot, curvesOf(members), longest, { marks: members.flatMap((member) => gapsOf(member.item, `${nameOf(member)}, `)), says });
  if (!plot.map) plot.div.after((plot.map = element("div", { class: "plot map" })));
  const marks = facts.decisions.filter(withinOf(longest)).map((mark) => ({ x: placeOf(longest, mark.step), text: mark.text }));
  const { axis, xName, zoom } = shared(plot);
  drawFamilyHeat(plot.map, members, { axis, xName, zoom, marks, label: `of ${plot.metric}`, ...events }).then((said) => {
    if (isHeat()) plot.note.replaceChildren(...[...said, ...also].map((parts) => element("span", {}, parts)));
  });
  plot.figure.dataset.points = String(longest.n_raw);
}

const withinOf = (item) => (mark) => mark.step >= item.step[0] && mark.step <= item.step.at(-1);

/** What stands beside a metric's name: its last value, and which colour is which kind of event. */
function captionOf(plot, items, shades) {
  const said = items.map((item, index) => {
    const last = plot.last?.has(item.kind) ? `last ${shown(plot.last.get(item.kind))}` : "";
    if (items.length === 1) return [last];
    return [swatchOf({ colour: shades[index] }), `${item.kind} ${last}`];
  });
  plot.note.title = items.some((item) => item.sampled) ? `downsampled from ${shown(items[0].n_raw)} values, extremes kept` : "";
  return said.filter((parts) => parts.join(""));
}

/** The step at which a series rises most from one value to the next: where a reader would look first. */
function largestJump(item) {
  const rises = item.value.map((value, index) => (index ? toNumber(value) - toNumber(item.value[index - 1]) : 0));
  const finite = rises.map((rise) => (Number.isFinite(rise) ? rise : 0));
  return item.step[finite.indexOf(Math.max(...finite))];
}

/** What the reader does on any panel. */
const events = {
  onZoom: (from, to) => write({ from, to }),
  onPoint: (step, isClick) => lookAround(step, isClick),
};

/** The step that the reader has clicked on, by panel; another click on it lets it go. */
const picked = new Map();

/** A link to a rule for what is seen on a panel: at the step that was clicked on, or in the part that is zoomed to. */
function ruleLink(plot) {
  const step = picked.get(plot);
  const isZoomed = state.axis === "step" && state.from !== null && state.to !== null;
  if (plot.panel.isFamily || (step === undefined && !isZoomed)) return [];
  const [from, to] = step === undefined ? [Math.ceil(state.from), Math.floor(state.to)] : [step, step];
  const at = { spike: run.id, metric: plot.metric, from, to, where: "started:7d", run: run.id };
  const where = step === undefined ? `steps ${shown(from)} to ${shown(to)}` : `step ${shown(step)}`;
  return [element("span", {}, element("a", { class: "write-rule", href: root + address("/backtest", at), title: `A rule that fires at ${where}, tried on the runs of the last week` }, `Write a rule for ${where}`))];
}

/** What the reader does on one panel: a click on a point offers a rule for it. */
const eventsOf = (plot) => ({
  ...events,
  onPoint: (step, isClick) => {
    lookAround(step, isClick);
    if (!isClick || plot.panel.isFamily) return;
    if (picked.get(plot) === step) picked.delete(plot);
    else picked.set(plot, step);
    show(plot);
  },
});

/** Zoom the curves to the step that the address names, as links of the headline do: "#step=1500". */
function showStep() {
  const named = /^#step=(\d+)$/.exec(location.hash);
  if (!named) return;
  const step = Number(named[1]);
  write({ axis: "step", from: Math.max(0, step - AROUND), to: step + AROUND });
  document.getElementById("plots").scrollIntoView({ block: "center" });
}

/** Lay out the panels; figures whose members have changed are drawn again. */
function showPanels() {
  look.hidden = !layOut(metrics, run.leading, state);
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
  const answer = await fetch(place.dataset.fragment).catch(() => null);
  if (!answer?.ok) {
    place.replaceChildren(element("p", { class: "faint" }, place.dataset.failed));
    return;
  }
  const part = new DOMParser().parseFromString(await answer.text(), "text/html");
  place.replaceChildren(...part.body.childNodes);
  // A long run is replayed in parts: each answer has come further.
  if (place.querySelector("[data-again]")) setTimeout(readFragment, AGAIN, place);
}

const readFragments = () => Promise.all([...document.querySelectorAll("[data-fragment]")].map(readFragment));

// ---- Live ---------------------------------------------------------------------------------------------------------

function say(text) {
  by("legend").textContent = text;
}

let isLost = false;
let again = null;

/** Say that the server does not answer, and ask again; once it does, the legend is back. */
function showLost(error) {
  const wasLost = isLost;
  isLost = error !== null && error.status === undefined;
  if (isLost) {
    say("The server does not answer. What is shown is what it said last.");
    again ??= setTimeout(() => ((again = null), reread()), LOST_AGAIN);
  } else if (error) say(error.message);
  else if (wasLost) showLegend();
}

/** Try what may find the server lost. */
const trying = (call) => call().then(() => showLost(null), showLost);

/** The newest events, for curves whose values were read before. */
let tail = [];

/** A place on the axis for an event, after the values of a series; undefined where only the server knows it. */
function placeIn(item, event) {
  if (item.attempt.length && item.attempt.at(-1) !== event.attempt) return undefined;
  if (state.axis === "step") return event.step;
  if (state.axis === "epoch") return event.epoch ?? null;
  if (state.axis === "elapsed" && item.x.length) return item.x.at(-1) + (event.elapsed_ns - item.elapsed_ns.at(-1)) / 1e9;
  return undefined;
}

/** Append what events bring to series that were read; returns whether some must be read again. */
function append(items, events) {
  let isBehind = false;
  for (const item of items) {
    for (const event of events) {
      if (event.kind !== item.kind || !(item.metric in event.metrics) || (item.elapsed_ns.length && event.attempt === item.attempt.at(-1) && event.elapsed_ns <= item.elapsed_ns.at(-1))) continue;
      const x = placeIn(item, event);
      if (x === undefined) isBehind = true;
      else if (x !== null) push(item, event, x);
    }
    isBehind ||= item.x.length > 2 * POINTS;
  }
  return isBehind;
}

function push(item, event, x) {
  const value = event.metrics[item.metric];
  item.x.push(x);
  item.value.push(value);
  item.step.push(event.step);
  item.attempt.push(event.attempt);
  item.elapsed_ns.push(event.elapsed_ns);
  item.n_raw += 1;
  if (!item.smoothed) return;
  const before = toNumber(item.smoothed.findLast((one) => Number.isFinite(toNumber(one))) ?? value);
  item.smoothed.push(Number.isFinite(toNumber(value)) ? state.smooth * before + (1 - state.smooth) * toNumber(value) : value);
}

/** Append what came between the server's answer and now. */
const catchUp = (items) => state.to === null && append(items, tail);

/** What a live run has just written: appended to the curves in sight, which are drawn with the next frame. */
function take(event) {
  tail.push(event);
  if (tail.length > 2 * TAIL) tail = tail.slice(-TAIL);
  const fresh = Object.keys(event.metrics).filter((name) => !metrics.includes(name));
  if (fresh.length) {
    metrics = [...metrics, ...fresh];
    run.leading ??= metrics[0];
    showPanels();
  }
  if (event.kind === "save") facts.saves.push({ step: event.step, text: `checkpoint, step ${event.step}` });
  if (event.kind === "epoch_begin") facts.epochs.push({ step: event.step, text: `epoch ${facts.epochs.length + 1} begins` });
  if (["decision", "rule_error", "operation_applied", "operation_refused"].includes(event.kind)) refreshFacts();
  refreshRegions();
  if (state.to === null) extend(Object.keys(event.metrics), event);
}

function extend(names, event) {
  for (const plot of visible()) {
    if (!plot.answered || !plot.panel.members.some((member) => names.includes(member.metric))) continue;
    const isKnown = plot.items.some((item) => item.kind === event.kind && names.includes(item.metric));
    if (!isKnown || append(plot.items, [event])) readSlowly();
    grown.add(plot);
  }
  if (!grown.size || waiting) return;
  waiting = requestAnimationFrame(() => {
    waiting = null;
    for (const plot of grown) {
      for (const item of plot.items) plot.last?.set(item.kind, toNumber(item.value.at(-1)));
      show(plot);
    }
    grown.clear();
  });
}

/** Plots whose series have grown since the last frame, and the frame that draws them. */
const grown = new Set();
let waiting = null;

const readSlowly = gathered(() => read(visible()), SLOW / 2);

/** Read what happened to the run, and draw it on the curves in sight. */
async function showFacts() {
  await trying(readFacts);
  visible().filter((plot) => plot.items.length).forEach(show);
}

const refreshFacts = gathered(showFacts, PAUSE);

/** The parts that the server renders. */
const refreshRegions = gathered(async () => {
  if (document.visibilityState !== "visible") return;
  await trying(() => refreshParts("[data-region]"));
  showPhases();
  facts.phases = phaseMarks();
}, SLOW);

function followLive() {
  setInterval(() => {
    if (document.visibilityState !== "visible") return;
    trying(() => refreshParts("[data-region=head]"));
    readFragments();
  }, AGED);
  const source = new EventSource(root + runPath(run.id, "/tail"));
  let isSecond = false;
  source.addEventListener("message", (message) => {
    const event = JSON.parse(message.data);
    take({ ...event, kind: event.event });
  });
  source.addEventListener("error", () => source.readyState === EventSource.CONNECTING && showLost(new TypeError()));
  // After a break the stream resumes where it was; until its first event, curves may lack what came before.
  source.addEventListener("open", () => {
    if (isSecond) readSlowly();
    isSecond = true;
  });
  source.addEventListener("end", async () => {
    source.close();
    await trying(() => refreshParts("[data-region]"));
    showPhases();
    await reread();
    readFragments();
  });
  return new Promise((resolve) => source.addEventListener("open", resolve, { once: true }));
}

// ---- Begin --------------------------------------------------------------------------------------------------------

/** What must be read anew, laid out anew, or only drawn anew, when the reader changes it. */
const READ = new Set(["axis", "x", "smooth", "from", "to", "size"]);
const LAID_OUT = new Set(["search", "pin", "size", "order"]);

onChange((now, changed) => {
  state = now;
  showLook(changed);
  if (changed.some((name) => LAID_OUT.has(name))) showPanels();
  if (changed.includes("from") || changed.includes("to")) {
    if (state.axis === "step") offerSteps(state.from, state.to);
    visible().filter((plot) => plot.items.length).forEach(show);
  }
  if (changed.some((name) => READ.has(name))) read(visible());
  else if (!changed.every((name) => LAID_OUT.has(name))) visible().filter((plot) => plot.items.length).forEach(show);
});

/** Controls by the names of what they set. */
const CONTROLS = ["axis", "x", "smooth", "log", "logx", "search", "size", "order"];

/** Show what was set. The others keep what is being typed into them. */
function showLook(changed = CONTROLS) {
  showControls(CONTROLS.filter((one) => changed.includes(one)), state);
  look.querySelector(`input[value=${isHeat() ? "heat" : "lines"}]`).checked = true;
}

const reread = async () => {
  await showFacts();
  await read(visible());
};
takeAnnotations(run.id, reread);
takeRequests(run.id, reread);
by("x").replaceChildren(...metrics.map((name) => element("option", {}, name)));
takeControls(CONTROLS, () => metrics.find((one) => one !== run.leading) ?? metrics[0]);
look.addEventListener("change", () => write({ family: look.querySelector("input:checked").value }));
showLook();
tellIfMissing(by("plots").parentElement);
document.addEventListener("themechange", () => visible().filter((plot) => plot.items.length).forEach(show));
onSeen(read);
if (by("vectors")) import("./vectors.js").then(({ takeVectors }) => takeVectors(run.id));
showPhases();
const connected = run.live ? followLive() : null;
await Promise.race([connected, new Promise((resolve) => setTimeout(resolve, 1000))]).catch(() => null);
showPanels();
await showFacts();
for (const problem of problems()) by("legend").prepend(`${problem}. `);
readFragments();
showStep();
addEventListener("hashchange", showStep);

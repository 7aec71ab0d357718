// The page of backtests, a workshop of rules: a rule is edited, tried on runs, swept and saved.
import { chart, curveOf, distinct, gapsOf, outsideButton, placeOf, readBy, ringsOf, standing, tellIfMissing } from "./chart.js";
import { PALETTE, colour, colourOf } from "./colours.js";
import { complete } from "./completion.js";
import { address, ask, counted, element, gathered, pageData, percent, post, refreshParts, root, runPath, shown, table, toNumber } from "./dom.js";
import { answer, changedParams, firingsSentence, params, ruleText, setParams, setRule, showFirings, takeEditor } from "./rule_editor.js";
import { closeSaving, takeSaving } from "./rule_saving.js";
import { problems, read, write } from "./state.js";
import { axesOf, frontOf } from "./sweep_front.js";

const data = pageData();
const by = (id) => document.getElementById(id);
const boxes = () => [...document.querySelectorAll("input[name=run]")];

/** Runs whose curves are drawn; the table has them all. */
const PLOTTED = 24;

/** Metrics that rules read which one picture shows. */
const MOST_READ = 4;

/** Objectives that are named above the tables; each run names its own. */
const OBJECTIVES = 4;

/** Between two looks at a job, in milliseconds. */
const PAUSE = 250;

const VALIDITY = { exact: "--good", observed: "--accent", "prefix-exact": "--accent", approximate: "--note", censored: "--note" };

/** What a recorded run can show about a decision that it did not make. */
const MEANING = {
  exact: "The decision leaves the run unchanged.",
  observed: "The recorded run made this decision too.",
  "prefix-exact": "A stop: the record up to it is exact, and the rest is the cost of not stopping.",
  approximate: "Live it might come at another step: the log holds only some steps, or the rule reads the clock or the saves.",
  censored: "The run would have diverged here or earlier, and the record does not show how.",
};

/** Runs whose curves show the firings before a backtest, and the points of each. */
const PREVIEWED = 6;
const PREVIEW_POINTS = 300;

/** Runs by which the first rule file is chosen; fewer if they have more steps. */
const FITTED = 3;
const FITTED_STEPS = 20_000;

/** Characters of a rule that the address holds. */
const SHORT = 1500;

let job = null;
let starts = 0;
let report = null;
const names = new Map();
const curves = new Map();
const plots = new Map();

// ---- What is asked ------------------------------------------------------------------------------------------------

/** What the address says: the rule, its changed params as NAME=VALUE, the question or the runs, and the form's fields. */
const FIRST = {
  policy: "", text: "", where: "", run: [], param: [], saves: "keep", objective: "", family: "", renames: "", spike: "", metric: "", from: null, to: null,
};
const FIELDS = ["saves", "objective", "family", "renames"];

/** Fill the form as the address says; what in it is wrong is named once the rule is there. */
function readAddress() {
  const asked = read(FIRST);
  for (const id of FIELDS) if (asked[id] !== FIRST[id]) by(id).value = asked[id];
  return asked;
}

function showProblems(more = []) {
  const wrong = [...data.faults, ...problems(), ...more];
  by("problems").replaceChildren(...wrong.map((sentence) => element("p", { class: "notice" }, sentence)));
}

/** The params that the address names, and a sentence for each that the rule lacks. */
function paramsOf(asked) {
  const pairs = asked.param.map((text) => [text.split("=")[0], text.split("=").slice(1).join("=")]);
  return Object.fromEntries(pairs);
}

/** Write what is asked into the address; a long rule into the entry of this tab's history, which a reload keeps. */
function writeAddress() {
  const text = ruleText();
  const isFile = data.policy && text === data.text;
  const isLong = !isFile && text.length > SHORT;
  history.replaceState(isLong ? { text } : null, "");
  by("state").dataset.long = String(isLong);
  const fields = Object.fromEntries(FIELDS.map((id) => [id, by(id).value]));
  const isAsked = by("search").value.trim() !== "";
  const run = chosen();
  write({
    ...fields, policy: isFile ? data.policy : "", text: isFile || isLong ? "" : text, where: by("search").value.trim(),
    run: isAsked ? asked.extra : run.length === boxes().length ? [] : run, param: changedParams().map(([name, value]) => `${name}=${value}`),
    spike: "", metric: "", from: null, to: null,
  });
}

/** The names in a field, separated by commas: a name may hold blanks. */
const words = (id) => by(id).value.split(",").map((text) => text.trim()).filter(Boolean);

/** New names of metrics by old ones, from OLD=NEW. */
function renames() {
  return Object.fromEntries(words("renames").map((text) => {
    const [old, ...rest] = text.split("=");
    if (!old || !rest.join("=")) throw new Error(`Renames: OLD=NEW is needed, not “${text}”.`);
    return [old, rest.join("=")];
  }));
}

const chosen = () => boxes().filter((box) => box.checked).map((box) => box.value);

/** The first chosen runs: at most so many, of so many steps together. */
function firstChosen(count = Infinity, steps = Infinity) {
  let left = steps;
  return boxes().filter((box) => box.checked && Number(box.dataset.steps) <= left && ((left -= Number(box.dataset.steps)), true)).slice(0, count).map((box) => box.value);
}

function showCount() {
  by("count").textContent = `${chosen().length} of ${boxes().length}`;
  const isReady = chosen().length > 0 && answer()?.ok === true;
  by("start").disabled = !isReady;
  by("save").disabled = !answer()?.ok;
  by("sweep").hidden = !Object.keys(axesOf(answer())).length;
  by("sweep").disabled = !isReady;
}

/** The fields that all jobs about a rule have. */
function asking() {
  const asked = { runs: chosen(), renames: renames(), saves: by("saves").value };
  const objective = words("objective");
  if (objective.length) asked.objective = objective;
  const family = by("family").value.trim();
  if (family) asked.family = family;
  return asked;
}

/** The rule as jobs take it: the name of a file that is as it was, else the text. */
const policyAsked = () => (data.policy && ruleText() === data.text ? { policy: data.policy } : { policy_text: answer().plain });

/** Start a job, and show its answer once it is there; one that still runs is cancelled. */
async function startJob(path, body, show) {
  const mine = ++starts;
  const cancel = ({ id }) => ask(`/api/v1/jobs/${id}`, { method: "DELETE" }).catch(() => null);
  try {
    if (job && ["queued", "running"].includes(job.status)) cancel(job);
    const started = await post(path, body());
    if (mine !== starts) return void cancel(started); // A newer one was started while this was on its way.
    job = started;
    await followJob(started, show);
  } catch (error) {
    state(error.message, true);
    running(false);
  }
}

/** Baselines and coverage take five times as long as the answer: they are asked for by themselves. */
const start = (more = {}) => startJob("/api/v1/backtests", () => ({ ...policyAsked(), params: params(), ...asking(), ...more }), showBacktest);

async function showBacktest(found, now) {
  report = found;
  running(false);
  by("firings").hidden = true;
  await showReport(now);
}

async function followJob(started, show) {
  running(true);
  let now = started;
  while (["queued", "running"].includes(now.status)) {
    if (job !== started) return;
    by("progress").max = now.runs || 1;
    by("progress").value = now.runs_done;
    state(now.status === "queued" ? "Waiting in the queue." : `${now.runs_done} of ${now.runs} runs read.`);
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    now = await ask(`/api/v1/jobs/${started.id}`);
  }
  if (job !== started) return;
  const found = now.status === "done" ? await ask(now.result) : null;
  if (job !== started) return;
  running(false);
  if (now.status !== "done") return state(now.error ?? `The job was ${now.status}.`, now.status === "failed");
  state("");
  await show(found, now);
}

function running(is) {
  by("progress").hidden = !is;
  by("cancel").hidden = !is;
  by("start").textContent = is ? "Running …" : report ? "Run again" : "Run the backtest";
}

/** Say how far the job is, or what is wrong. */
function state(text, isWrong = false) {
  by("state").textContent = text;
  by("state").className = isWrong ? "notice wrong" : "faint";
}

// ---- What it came to ----------------------------------------------------------------------------------------------

async function showReport(now) {
  const place = by("report");
  plots.clear();
  const sorted = [...report.runs].sort((one, other) => Number(other.stop !== null) - Number(one.stop !== null) || Number(other.fired) - Number(one.fired));
  const figures = sorted.slice(0, PLOTTED).map(figureOf);
  place.replaceChildren(
    element("div", { class: "tools" }, element("h2", {}, `${data.policy && ruleText() === data.text ? data.policy : "This rule"}: ${counted(report.runs.length, "run")}`), element("span", { class: "grow" }),
      now.report ? element("a", { class: "button", href: root + now.report, target: "_blank", rel: "noopener" }, "Full report") : null),
    verdict(), ...hints(), cards(), glossary(), runsTable(), comparisonTable(),
    element("h2", {}, "Curves and firings"),
    element("p", { class: "faint legend" }, "▼ a rule fires; ○ the value that it read. Shaded: the part of the run that the stop would have saved."),
    element("div", { class: "plots" }, figures),
    report.runs.length > PLOTTED ? element("p", { class: "faint" }, `${counted(report.runs.length - PLOTTED, "more run")} in the table above, without a picture.`) : "",
    limits(),
  );
  for (const entry of sorted.slice(0, PLOTTED)) await drawRun(entry);
  tellIfMissing(place);
  place.dataset.done = now.id;
}

/** Whether to arm the policy and why, then how many runs it stops, in the report's own sentences. */
function verdict() {
  const { headline, because } = report.arming;
  const answer = element("p", {}, element("b", {}, `${headline}. `), because);
  return element("div", { class: "verdict" }, [answer, ...report.verdict.map((text) => element("p", {}, text))]);
}

function cards() {
  const list = report.objectives.slice(0, OBJECTIVES).map((one) => [one.metric, judging(one)]);
  return element("div", { class: "figures" }, list.map(([figure, text]) => element("div", {}, element("b", {}, figure), element("span", {}, text))));
}

/** How a metric judges, how many runs, and whether nobody said so. */
function judging(one) {
  const runs = one.runs === report.runs.length ? "" : `judges ${counted(one.runs, "run")}, `;
  return `${runs}${one.mode === "min" ? "lower" : "higher"} is better${one.guessed ? " (guessed)" : ""}`;
}

/** Metrics that the rules read and that runs recorded under other names. */
function hints() {
  return report.lacking.map((one) => {
    const names = Object.entries(one.nearest).map(([name, runs]) => `${name} (${counted(runs, "run")})`).join(", ");
    return element("p", { class: "notice" }, `${one.runs} of ${counted(one.of, "run")} lack ${one.name}, which the rules read. They recorded ${names} instead: see “Renamed metrics”.`);
  });
}

/** What the words of the page mean, in one sentence each. */
function glossary() {
  const words = [];
  if (report.aggregate.relative_regret.runs) {
    words.push("Regret: how much worse the best evaluation until the stop is than the best of the whole run.");
    words.push("Deployable regret counts only evaluations at steps with a checkpoint.");
  }
  if (report.aggregate.right_censored) words.push("≥ marks a lower bound: the recorded run ended early, or its own rules stopped it.");
  words.push(...report.notices);
  words.push("Validity: how far the record supports the decision. Point at a label for its meaning.");
  return element("p", { class: "faint legend" }, words.join(" "));
}

function runsTable() {
  const rows = report.runs.map((one) => {
    const bound = one.right_censored ? "≥ " : "";
    const known = one.predicted !== null;
    const able = known && !one.could_not_fire;
    return [
      element("a", { href: `${root}/runs/${encodeURIComponent(one.run_id)}` }, one.name),
      one.stop ? shown(endOf(one)) : known ? "–" : "unknown",
      shown(one.recorded.steps),
      able && one.recorded.steps ? bound + percent(one.saved.steps / one.recorded.steps, 0) : "–",
      shown(one.decisions.length),
      one.objective?.metric ?? "–",
      shown(toFigure(one.recorded.best)),
      shown(toFigure(one.predicted?.best)),
      one.regret.relative === null || !able ? "–" : bound + percent(one.regret.relative, 2),
      one.stop ? chip(one.stop.validity) : one.could_not_fire ? element("span", { title: one.could_not_fire }, "could not fire") : known ? "no stop" : chip("censored"),
    ];
  });
  return element("section", {}, table(["run", "stop at", "of steps", "saved", "firings", "judged by", "best of run", "best until stop", "regret", "validity"], rows, [0, 5, 9]));
}

const chip = (validity) => element("span", { class: `chip ${validity}`, title: MEANING[validity] ?? null }, validity);

const toFigure = (value) => (value === null || value === undefined ? null : toNumber(value));

function comparisonTable() {
  const rows = report.comparison.map((row) =>
    row.reason
      ? [row.title, row.reason, "", "", "", ""]
      : [row.name === "policy" ? element("b", {}, row.title) : row.title, `${Number(row.stopped.toPrecision(3))} of ${row.runs}`, percent(row.share_saved.mean), ...costs(row)],
  );
  if (rows.length < 2) return element("p", {}, element("button", { type: "button", id: "compare" }, "Compare with simpler rules"));
  const words = "All rows are over the same runs: those that every row scores. The oracle stops at the best evaluation, which no rule can know in advance. A rung is a step at which ASHA compares runs.";
  return element("details", { open: "" }, element("summary", {}, "Comparison with simpler rules"), element("p", { class: "faint legend" }, words), table(["", "stops", "steps saved", "regret", "median regret", "deployable regret"], rows));
}

/** Regrets of a row; a dash where it stops runs and none of them can be judged. */
function costs({ stopped, stops_judged: judged, relative_regret: regret, relative_deployable_regret: deployable }) {
  const known = !stopped || judged > 0;
  return [regret.mean, regret.median, deployable.mean].map((value) => (known ? percent(value, 2) : "–"));
}

function limits() {
  const unable = report.runs.filter((one) => one.could_not_fire).map((one) => ({ ...one, reason: `could not fire: ${one.could_not_fire}` }));
  const left = [...report.excluded, ...report.repeated, ...unable].map((one) => `${one.name || one.run_id}: ${one.reason}`);
  return element("details", {}, element("summary", {}, "Assumptions and excluded runs"), element("ul", {}, [...report.assumptions, ...left].map((text) => element("li", {}, text))));
}

/** The step at which a run ends that a rule stops: after the decision's if values came late. */
function endOf(entry) {
  return entry.predicted?.steps ?? entry.stop.step;
}

function figureOf(entry) {
  const div = element("div", { class: "plot" });
  const [legend, tools, note] = [element("div", { class: "names" }), element("span", { class: "panel-tools" }), element("span")];
  plots.set(entry.run_id, { div, note, legend, tools, isWhole: false, zoom: [null, null] });
  const stop = entry.stop ? `stop at step ${shown(endOf(entry))}` : entry.could_not_fire ? `could not fire: ${entry.could_not_fire}` : entry.fired ? `${counted(entry.decisions.length, "firing")}, no stop` : "no rule fires";
  return element("figure", { "data-run": entry.run_id, "data-firings": String(entry.decisions.length), "data-stop": entry.stop ? String(endOf(entry)) : "" },
    element("figcaption", {}, element("b", {}, entry.name), " ", element("span", { class: "faint" }, stop), " ", note, tools), legend, div);
}

/** The name under which a run recorded a metric of the report, among its names; null without one. */
function recordedAs(metric, names) {
  if (names.includes(metric)) return metric;
  return Object.entries(report.renames).find(([old, now]) => now === metric && names.includes(old))?.[0] ?? null;
}

/** The metrics of a run that its decisions read, under the names that it recorded them by. */
function metricsRead(entry, names) {
  const known = [...names, ...names.map((name) => report.renames[name]).filter(Boolean)];
  return readBy(entry.decisions, known).map((metric) => recordedAs(metric, names)).filter(Boolean);
}

/** What the rules read where they fired, else the training loss; and the objective. Read once for each set of names. */
async function curvesOf(entry) {
  if (!names.has(entry.run_id)) names.set(entry.run_id, (await ask(runPath(entry.run_id))).metrics.map((metric) => metric.name));
  const own = names.get(entry.run_id);
  const read = metricsRead(entry, own).slice(0, MOST_READ);
  const wanted = [...(read.length ? read : [recordedAs("loss", own) ?? own[0]]), recordedAs(entry.objective?.metric, own)].filter(Boolean);
  const key = JSON.stringify([entry.run_id, ...new Set(wanted)]);
  if (!curves.has(key)) {
    const { items } = await ask(address(runPath(entry.run_id, "/series"), { metric: [...new Set(wanted)], points: 600 }));
    curves.set(key, distinct(items.filter((item) => item.step.length)));
  }
  return curves.get(key);
}

/** The curves of a run: each firing has its ring on the curve that the rule read, at the value it read. */
async function drawRun(entry) {
  const plot = plots.get(entry.run_id);
  try {
    const items = await curvesOf(entry);
    if (!items.length || plots.get(entry.run_id) !== plot) return;
    const own = colourOf(entry.run_id);
    const shades = [own, ...PALETTE.filter((shade) => shade !== own)];
    const drawn = items.map((item, index) => curveOf(item, { name: item.metric, colour: shades[index % shades.length] }));
    const longest = items.reduce((long, item) => (item.step.at(-1) > long.step.at(-1) ? item : long));
    const fired = entry.decisions.map((one) => ({ ...one, kind: "decision", x: placeOf(longest, one.step), text: `step ${shown(one.step)}: ${one.controller} (${one.validity})`, colour: colour(VALIDITY[one.validity] ?? "--faint") }));
    const stops = entry.stop ? [{ step: endOf(entry), isStop: true }] : [];
    const isSame = (item) => (decision) => ({ ...decision, values: renamed(decision.values, item.metric) });
    plot.chart ??= chart(plot.div, {
      title: entry.name, legend: plot.legend, tools: plot.tools,
      onZoom: (from, to) => plot.chart.change({ zoom: (plot.zoom = [from, to]) }),
    });
    plot.chart.draw({
      curves: drawn, axis: "step", zoom: plot.zoom, isWhole: plot.isWhole,
      marks: [...fired, ...items.flatMap((item) => gapsOf(item, `${item.metric}, `))],
      rings: items.flatMap((item) => ringsOf(item, entry.decisions.map(isSame(item)))),
      ...standing(longest, { decisions: stops, spared: entry.stop ? endOf(entry) : null }),
      onDrawn: (view) => plot.note.replaceChildren(...[outsideButton(view, plot.isWhole, () => plot.chart.change({ isWhole: (plot.isWhole = !plot.isWhole) }))].filter(Boolean)),
    });
  } catch (error) {
    plot?.div.replaceChildren(element("p", { class: "faint" }, error.message));
  }
}

/** What a decision read, with the run's own name of a metric for the rules' name of it. */
function renamed(values, metric) {
  const now = report.renames[metric];
  return now && now in values ? { ...values, [metric]: values[now] } : values;
}

// ---- Firings before a backtest ------------------------------------------------------------------------------------

/** The drawn runs, with the text and the runs that they are for. */
let preview = null;

/** Where the rule fires, at once: a sentence, and marks on the curve of the series that it reads. */
async function showQuickFirings(items, count) {
  const place = by("firings");
  by("fires").textContent = firingsSentence(items, count);
  const ids = items.map((one) => one.run_id).join(" ");
  const text = ruleText();
  if (preview?.ids !== ids || preview.text !== text || !place.childElementCount) {
    place.ariaBusy = "true"; // The curves are of another rule, or of other runs.
    const rank = (one) => (one.firings ? 2 : Number(!one.could_not_fire && !one.error));
    const runs = [...items].sort((one, other) => rank(other) - rank(one)).slice(0, PREVIEWED);
    const metric = await seriesRead(runs[0].run_id);
    if (text !== ruleText()) return;
    if (!metric) {
      place.ariaBusy = null;
      return place.replaceChildren();
    }
    const answered = await ask(address("/api/v1/series", { run: runs.map((one) => one.run_id), metric, points: PREVIEW_POINTS })).catch(() => ({ items: [] }));
    if (text !== ruleText()) return;
    const filled = distinct(answered.items.filter((item) => item.step.length));
    const figures = runs.flatMap((run) => filled.filter((item) => item.run_id === run.run_id).slice(0, 1).map(previewOf));
    preview = { ids, text, figures };
    const others = items.length > figures.length ? [element("p", { class: "faint" }, `The curves of ${shown(figures.length)} of ${counted(items.length, "run")}, first those in which it fires.`)] : [];
    place.replaceChildren(element("h2", {}, "Where it fires"), ...others, element("div", { class: "plots" }, figures.map((one) => one.figure)));
  }
  place.ariaBusy = null;
  const firings = new Map(items.map((one) => [one.run_id, one]));
  for (const one of preview.figures) drawPreview(one, firings.get(one.item.run_id));
}

/** The metric that the text names first, among those of a run. */
async function seriesRead(id) {
  if (!names.has(id)) names.set(id, (await ask(runPath(id))).metrics.map((metric) => metric.name));
  const words = ruleText().match(/"[^"]+"|[\w./-]+/g) ?? [];
  return words.map((word) => word.replaceAll('"', "")).find((word) => names.get(id).includes(word));
}

function previewOf(item) {
  const div = element("div", { class: "plot" });
  const note = element("span", { class: "faint" });
  const name = boxes().find((box) => box.value === item.run_id)?.parentElement.firstElementChild.nextSibling.textContent.trim() ?? item.run_id;
  const figure = element("figure", { "data-preview": item.run_id }, element("figcaption", {}, element("b", {}, name), " ", note), div);
  return { item, div, note, figure, name };
}

function drawPreview(one, fired) {
  const { item } = one;
  one.chart ??= chart(one.div, { title: one.name, onZoom: (from, to) => one.chart.change({ zoom: [from, to] }) });
  const steps = fired?.steps ?? [];
  const marked = fired?.firings > steps.length ? `, the first ${counted(steps.length, "step")} marked` : "";
  const none = fired?.error ? `cannot be read: ${fired.error}` : fired?.could_not_fire ? `could not fire: ${fired.could_not_fire}` : "does not fire";
  one.note.textContent = fired?.firings ? `${counted(fired.firings, "firing")}, first at step ${shown(fired.first_step)}${marked}` : none;
  one.figure.dataset.firings = String(fired?.firings ?? 0);
  const marks = steps.map((step) => ({ kind: "decision", step, x: placeOf(item, step), text: `step ${shown(step)}: fires`, colour: colour("--accent") }));
  const read = steps.map((step) => ({ step, values: { [item.metric]: undefined } }));
  one.chart.draw({
    curves: [curveOf(item, { name: item.metric, colour: colourOf(item.run_id) })], axis: "step", zoom: [null, null],
    marks: [...marks, ...gapsOf(item)], rings: ringsOf(item, read),
    ...standing(item, { decisions: fired?.stop_step ? [{ step: fired.stop_step, isStop: true }] : [], spared: fired?.stop_step ?? null }),
  });
}

// ---- Sweep --------------------------------------------------------------------------------------------------------

/** Try the values of the params, and show which are worth it; a click on one takes it into the editor. */
const sweep = () =>
  startJob("/api/v1/sweeps", () => ({ policy_text: answer().plain, axes: axesOf(answer()), split: "families", certify: true, ...asking() }), (found, now) => {
    report = null;
    by("report").replaceChildren(...frontOf(found, setParams));
    by("report").dataset.done = now.id;
    by("firings").hidden = false;
  });

// ---- Recommendation -----------------------------------------------------------------------------------------------

async function showRecommendation(found) {
  const [headline, ...why] = found.answer[0].split(/(?<=\.) (?=[A-Z])/);
  const sentences = [element("p", {}, element("b", {}, headline), ` ${why.join(" ")}`), ...found.answer.slice(1).map((text) => element("p", {}, text))];
  report = null;
  by("report").replaceChildren(element("h2", {}, "Recommendation"), element("div", { class: "verdict" }, sentences));
  if (found.rule) await choose("", found.rule.text);
}

// ---- Begin --------------------------------------------------------------------------------------------------------

/** Take a rule file, or a text of the reader's own, into the editor. */
async function choose(name, text, given = {}) {
  [data.policy, data.text] = [name, text];
  by("policy").value = name;
  await setRule(text, given);
}

/** Take a rule file by its name, unless the reader has chosen another one meanwhile. */
async function chooseFile(name) {
  const { text } = await ask(`/api/v1/policies/${encodeURIComponent(name)}`);
  if (by("policy").value === name) await choose(name, text);
}

const asked = { ...readAddress(), extra: [] };
asked.extra = asked.where ? asked.run : [];

/** The first rule: what the address says, a rule for a spike, or the rule file that fits the chosen runs. */
async function begin() {
  const given = paramsOf(asked);
  if (asked.spike) {
    try {
      const found = await post("/api/v1/rules/proposals", { run: asked.spike, metric: asked.metric, first_step: asked.from ?? 0, last_step: asked.to ?? asked.from ?? 0 });
      if (ruleText()) return null; // The reader writes already.
      state(`${found.why} The rule fires at step ${shown(found.step)}${found.fires > 1 ? `, and ${counted(found.fires, "time")} in all of that run` : " of that run, and nowhere else in it"}.`);
      return choose("", found.text);
    } catch (error) {
      state(error.message, true);
      return choose("", "");
    }
  }
  const kept = asked.text || history.state?.text;
  if (kept) return choose("", kept, given);
  if (data.policy) return choose(data.policy, data.text, given);
  const fitted = firstChosen(FITTED, FITTED_STEPS);
  if (!fitted.length) return choose("", "");
  state("Looking for the rule file that fits these runs.");
  const best = await fitting(fitted);
  state("");
  return ruleText() ? null : choose(best?.name ?? "", best?.text ?? "", given);
}

/** The first rule file that could fire in all of some runs, else in most of them; null if none could in any. */
async function fitting(runs) {
  let best = null;
  for (const name of data.candidates) {
    if (ruleText() || best?.count === runs.length) break;
    const { text } = await ask(`/api/v1/policies/${encodeURIComponent(name)}`);
    const { could_fire: reach } = await post("/api/v1/rules/check", { text, runs });
    if (reach && reach.could_fire > (best?.count ?? 0)) best = { name, text, count: reach.could_fire };
  }
  return best;
}

takeEditor({
  runs: firstChosen,
  onEdit: () => {
    by("policy").value = ruleText() === data.text ? data.policy : "";
    Object.assign(by("firings"), { hidden: false, ariaBusy: "true" });
    showCount();
    writeAddress();
    closeSaving();
  },
  onChecked: (found) => {
    if (found?.ok) found.plain = Object.keys(found.choices).length || !ruleText().includes("controllers:") ? found.rule_file : ruleText();
    by("saving-field").hidden = !found?.asks_for_checkpoints;
    const lacking = found?.ok ? asked.param.filter((text) => !(text.split("=")[0] in found.params)) : [];
    showProblems(lacking.map((text) => `param: the rule has no such parameter; got ${text}`));
    showCount();
    if (found) writeAddress();
    asked.param = [];
  },
  onFirings: showQuickFirings,
}, data.words);
takeSaving({ canSave: data.saves, params, proposedName: () => data.policy });
complete(by("search"), { done: () => askRuns() });

const askRuns = gathered(async () => {
  asked.extra = [];
  write({ where: by("search").value.trim(), run: [] });
  await refreshParts("[data-region=runs]", { prepare: (fresh) => (data.faults = JSON.parse(fresh.getElementById("data").textContent).faults) });
  for (const box of boxes()) box.checked = box.defaultChecked;
  showProblems();
  showCount();
  showFirings();
}, 400);

by("policy").addEventListener("change", () => by("policy").value && chooseFile(by("policy").value).catch((error) => state(error.message, true)));
by("job").addEventListener("submit", async (event) => {
  event.preventDefault();
  await start();
  // On a narrow screen the report stands below the form.
  if (report && by("report").getBoundingClientRect().top > innerHeight / 2) by("report").scrollIntoView();
});
by("recommend").addEventListener("click", () => startJob("/api/v1/recommendations", () => {
  const { renames: _, saves: __, ...rest } = asking();
  return rest;
}, showRecommendation));
by("sweep").addEventListener("click", sweep);
by("report").addEventListener("click", (event) => event.target.id === "compare" && start({ baselines: ["all"], coverage: true }));
by("cancel").addEventListener("click", () => ask(`/api/v1/jobs/${job.id}`, { method: "DELETE" }).catch((error) => state(error.message, true)));
const again = gathered(() => report && start(), 400);
document.addEventListener("input", (event) => {
  if (event.target.id === "search") return askRuns();
  if (event.target.matches("[data-param]")) {
    try {
      params();
      state("");
      showFirings();
    } catch (error) {
      state(error.message, true);
    }
  }
  if (event.target.closest("#job") || event.target.matches("[data-param]")) writeAddress();
  if (event.target.matches("[data-param], #saves")) again();
});
document.addEventListener("change", (event) => {
  if (event.target.name !== "run") return;
  by("search").value = "";
  writeAddress();
  showCount();
  showFirings();
});
for (const [id, value] of [["all", true], ["none", false]]) {
  by(id).addEventListener("click", () => {
    for (const box of boxes()) box.checked = value;
    by("search").value = "";
    writeAddress();
    showCount();
    showFirings();
  });
}
document.addEventListener("themechange", () => {
  report?.runs.slice(0, PLOTTED).forEach(drawRun);
  if (answer()?.ok) showFirings();
});
showProblems();
showCount();
begin().catch((error) => state(error.message, true));

// The page of backtests: a job is started, followed and read; a changed parameter starts the next.
import { chart, curveOf, distinct, gapsOf, outsideButton, placeOf, readBy, ringsOf, standing, tellIfMissing } from "./chart.js";
import { PALETTE, colour, colourOf } from "./colours.js";
import { address, ask, counted, element, gathered, pageData, percent, post, root, runPath, shown, table, toNumber } from "./dom.js";
import { problems, read, write } from "./state.js";

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

let job = null;
let report = null;
const names = new Map();
const curves = new Map();
const plots = new Map();

// ---- What is asked ------------------------------------------------------------------------------------------------

/** A parameter as its policy has it: a number stays a number, a truth value one. */
function valueOf(input) {
  const was = data.params[input.name];
  const text = input.value.trim();
  if (typeof was === "boolean") return text === "true";
  if (typeof was !== "number") return text;
  if (text === "" || !Number.isFinite(Number(text))) throw new Error(`${input.name}: a number is needed, not “${text}”.`);
  return Number(text);
}

const inputs = () => [...document.querySelectorAll("[data-param]")];
const changed = () => inputs().filter((input) => input.value.trim() !== input.defaultValue);
const params = () => Object.fromEntries(changed().map((input) => [input.name, valueOf(input)]));

/** What the address says of the form: changed parameters as NAME=VALUE, no run where all are chosen, and its fields. */
const FIRST = { policy: "", run: [], param: [], saves: "keep", objective: "", family: "", renames: "" };
const FIELDS = ["saves", "objective", "family", "renames"];

/** Fill the form as the address says, and name what in it is wrong. */
function readAddress() {
  const asked = read(FIRST);
  const wrong = [...data.faults, ...problems()];
  for (const id of FIELDS) if (by(id) && asked[id] !== FIRST[id]) by(id).value = asked[id];
  for (const text of asked.param) {
    const [name, ...value] = text.split("=");
    const input = inputs().find((one) => one.name === name);
    if (input) input.value = value.join("=");
    else wrong.push(`param: the rule file has no such parameter; got ${text}`);
  }
  by("problems").replaceChildren(...wrong.map((sentence) => element("p", { class: "notice" }, sentence)));
}

function writeAddress() {
  const fields = Object.fromEntries(FIELDS.map((id) => [id, by(id)?.value ?? FIRST[id]]));
  const run = chosen();
  write({ ...fields, run: run.length === boxes().length ? [] : run, param: changed().map((input) => `${input.name}=${input.value.trim()}`) });
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

function showCount() {
  by("count").textContent = `${chosen().length} of ${boxes().length}`;
  by("start").disabled = !chosen().length || !data.policy;
}

/** Baselines and coverage take five times as long as the answer: they are asked for by themselves. */
async function start(more = {}) {
  let asked;
  try {
    asked = { policy: data.policy, params: params(), runs: chosen(), renames: renames(), saves: by("saves")?.value ?? "keep", ...more };
    const objective = words("objective");
    if (objective.length) asked.objective = objective;
    const family = by("family").value.trim();
    if (family) asked.family = family;
  } catch (error) {
    return state(error.message, true);
  }
  try {
    if (job && ["queued", "running"].includes(job.status)) ask(`/api/v1/jobs/${job.id}`, { method: "DELETE" }).catch(() => null);
    const started = await post("/api/v1/backtests", asked);
    job = started;
    await followJob(started);
  } catch (error) {
    state(error.message, true);
    running(false);
  }
}

async function followJob(started) {
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
  report = found ?? report;
  running(false);
  if (now.status !== "done") return state(now.error ?? `The job was ${now.status}.`, now.status === "failed");
  state("");
  await showReport(now);
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
    element("div", { class: "tools" }, element("h2", {}, `${data.policy}: ${counted(report.runs.length, "run")}`), element("span", { class: "grow" }),
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

// ---- Begin --------------------------------------------------------------------------------------------------------

by("policy").addEventListener("change", () => {
  const { param: _, ...kept } = read();
  const given = Object.entries({ ...kept, policy: by("policy").value }).filter(([name, value]) => value !== FIRST[name]);
  location.assign(root + address("/backtest", Object.fromEntries(given)));
});
by("job").addEventListener("submit", async (event) => {
  event.preventDefault();
  await start();
  // On a narrow screen the report stands below the form.
  if (report && by("report").getBoundingClientRect().top > innerHeight / 2) by("report").scrollIntoView();
});
by("report").addEventListener("click", (event) => event.target.id === "compare" && start({ baselines: ["all"], coverage: true }));
by("cancel").addEventListener("click", () => ask(`/api/v1/jobs/${job.id}`, { method: "DELETE" }).catch((error) => state(error.message, true)));
const again = gathered(() => job && start(), 400);
document.addEventListener("input", (event) => {
  if (event.target.closest("#job") && event.target.id !== "search") writeAddress();
  if (event.target.matches("[data-param], #saves")) again();
  if (event.target.id === "search") {
    const wanted = event.target.value.toLocaleLowerCase();
    for (const box of boxes()) box.parentElement.hidden = !box.parentElement.textContent.toLocaleLowerCase().includes(wanted);
  }
});
document.addEventListener("change", (event) => event.target.name === "run" && showCount());
for (const [id, value] of [["all", true], ["none", false]]) {
  by(id)?.addEventListener("click", () => {
    for (const box of boxes()) if (!box.parentElement.hidden) box.checked = value;
    writeAddress();
    showCount();
  });
}
document.addEventListener("themechange", () => report?.runs.slice(0, PLOTTED).forEach(drawRun));
readAddress();
showCount();

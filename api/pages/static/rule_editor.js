// The editor of a rule: checked as one types, completed at the caret, its params as sliders, its firings at once.
import { complete } from "./completion.js";
import { ask, counted, element, gathered, post, runPath, shown } from "./dom.js";

/** Between the last key and the check, in milliseconds. */
const PAUSE = 250;

/** Runs that a rule is compared with, and that say which series there are; fewer if they have more steps. */
const COMPARED = 3;
const COMPARED_STEPS = 20_000;

/** Reasons that a sentence names for which a rule could not fire. */
const REASONS = 2;

/** Runs whose firings are asked for at a time: as many as the API takes. */
const AT_ONCE = 200;

const by = (id) => document.getElementById(id);
const text = by("rule");

let checked = null;
let asked = 0;
let page = null;

/** The newest answer of a check; null until there is one, and while the text has changed since. */
export const answer = () => checked;

/** The text in the editor. */
export const ruleText = () => text.value;

// ---- Check --------------------------------------------------------------------------------------------------------

/** Put a text into the editor and check it. */
export async function setRule(value, params = {}) {
  text.value = value;
  fit();
  await check(params);
}

/** As many rows as the text has, within bounds. */
function fit() {
  text.rows = Math.min(14, Math.max(3, text.value.split("\n").length + 1));
}

/** Ask what is wrong with the text. An answer that comes after the text has changed is dropped. */
async function check(params = {}) {
  const mine = ++asked;
  const value = text.value;
  checked = null;
  if (!value.trim()) return take(null, params);
  try {
    const found = await post("/api/v1/rules/check", { text: value });
    if (mine !== asked || text.value !== value) return;
    take(found, params);
    if (found.ok) await compare(mine, value);
  } catch (error) {
    if (mine === asked) showSaid([element("p", { class: "notice" }, error.message)]);
  }
}

/** What some of the runs say of a rule that loads, such as a series that none of them has: it takes longer. */
async function compare(mine, value) {
  await showFirings();
  const runs = page.runs(COMPARED, COMPARED_STEPS);
  if (mine !== asked) return;
  const found = runs.length ? await post("/api/v1/rules/check", { text: value, runs }) : checked;
  if (mine === asked && text.value === value) showFound(found, comparedSentence(runs.length, page.runs().length));
}

/** How many of the chosen runs warnings look at; empty if all. */
function comparedSentence(count, chosen) {
  if (count === chosen) return "";
  const few = `the first of at most ${shown(COMPARED_STEPS)} steps together`;
  return count ? `Warnings look at ${shown(count)} of the ${shown(chosen)} chosen runs, ${few}.` : `Warnings look at no run: each has more than ${shown(COMPARED_STEPS)} steps.`;
}

/** What the caret is set to by a click on a problem. */
function goTo({ line, column }) {
  const at = text.value.split("\n").slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0) + column - 1;
  text.focus();
  text.setSelectionRange(at, Math.min(text.value.length, at + 1));
}

function showFound(found, more = "") {
  const place = ({ line, column }) => `${line}:${column}`;
  const said = (list, kind) =>
    list.map((one) => element("li", { class: kind }, element("button", { type: "button", class: "quiet", title: "Go there", onclick: () => goTo(one) }, place(one)), " ", one.message));
  const parts = found ? [...said(found.problems, "wrong"), ...said(found.warnings, "doubt")] : [];
  const fine = [found && !parts.length ? "The rule loads." : "", more].filter(Boolean).join(" ");
  showSaid([parts.length ? element("ul", { class: "said" }, parts) : null, fine ? element("p", { class: "faint" }, fine) : null].filter(Boolean));
  text.setAttribute("aria-invalid", String(Boolean(found?.problems.length)));
}

function take(found, params) {
  checked = found;
  showFound(found);
  showParams(params);
  page.onChecked(found);
  if (found?.ok) return;
  by("firings").replaceChildren();
  by("fires").textContent = "";
}

const showSaid = (parts) => by("checked").replaceChildren(...parts);

// ---- Params -------------------------------------------------------------------------------------------------------

/** A field for each param, with a slider for those that are numbers. What the reader has changed stays. */
function showParams(given) {
  const before = { ...Object.fromEntries(changedParams()), ...given };
  const fields = Object.entries(checked?.params ?? {}).flatMap(([name, value], index) => {
    const id = `param-${index}`;
    const field = element("input", { id, name, value: typeof value === "string" ? value : JSON.stringify(value), "data-param": "", autocomplete: "off", inputmode: typeof value === "number" ? "decimal" : null });
    if (name in before) field.value = before[name];
    const parts = [element("label", { for: id }, name)];
    if (name in checked.ranges) {
      const [min, max, step] = checked.ranges[name];
      const slider = element("input", { type: "range", "aria-label": `${name}, slider`, min, max, step, value: Number(field.value) });
      slider.addEventListener("input", () => {
        field.value = slider.value;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      });
      field.addEventListener("input", () => (slider.value = field.value));
      parts.push(slider);
    } else parts.push(element("span"));
    return [...parts, field];
  });
  by("params").replaceChildren(...fields);
}

const inputs = () => [...document.querySelectorAll("[data-param]")];

/** Names and texts of the params that the reader has changed. */
export const changedParams = () => inputs().filter((input) => input.value.trim() !== input.defaultValue).map((input) => [input.name, input.value.trim()]);

/** A param as its rule file has it: a number stays a number, a truth value one. */
function valueOf([name, said]) {
  const was = checked?.params?.[name];
  if (typeof was === "boolean") return [name, said === "true"];
  if (typeof was !== "number") return [name, said];
  if (said === "" || !Number.isFinite(Number(said))) throw new Error(`${name}: a number is needed, not “${said}”.`);
  return [name, Number(said)];
}

/** The values of the params that differ from the text's. */
export const params = () => Object.fromEntries(changedParams().map(valueOf));

/** Set params, as a click on a point of a sweep does. */
export function setParams(values) {
  for (const input of inputs()) if (input.name in values) input.value = String(values[input.name]);
  inputs()[0]?.dispatchEvent(new Event("input", { bubbles: true }));
}

// ---- Firings ------------------------------------------------------------------------------------------------------

let isAsking = false;
let isStale = false;

/** Ask where the rule fires, one request at a time: while one is on its way, only the newest values wait. */
export async function showFirings() {
  if (isAsking) {
    isStale = true;
    return;
  }
  isAsking = true;
  try {
    do {
      isStale = false;
      const runs = page.runs();
      if (!checked?.ok || !runs.length) break;
      const value = text.value;
      const { items } = await post("/api/v1/rules/firings", { text: value, params: params(), runs: runs.slice(0, AT_ONCE) });
      if (text.value === value) await page.onFirings(items, runs.length);
    } while (isStale);
  } catch (error) {
    by("fires").textContent = error.message;
  } finally {
    isAsking = false;
  }
}

/** What the rule does in runs, in sentences: a run that it could not fire in, or that cannot be read, says nothing of it. */
export function firingsSentence(items, count) {
  const fired = items.filter((one) => one.firings);
  const stops = items.filter((one) => one.stop_step !== null).length;
  const total = fired.reduce((sum, one) => sum + one.firings, 0);
  const of = count > items.length ? `the first ${shown(items.length)} of ${shown(count)} chosen runs` : counted(items.length, "run");
  const said = [`Fires in ${shown(fired.length)} of ${of}, ${counted(total, "time")} in all${stops ? `; stops ${shown(stops)}` : ""}.`];
  for (const [what, key] of [["Could not fire in", "could_not_fire"], ["Cannot read", "error"]]) {
    const reasons = [...Map.groupBy(items.filter((one) => one[key]), (one) => one[key])].sort(([, one], [, other]) => other.length - one.length);
    const named = reasons.slice(0, REASONS).map(([why, runs]) => `${counted(runs.length, "run")}: ${why.replace(/\.$/, "")}`);
    if (named.length) said.push(`${what} ${named.join("; ")}${reasons.length > REASONS ? "; and others" : ""}.`);
  }
  return said.join(" ");
}

// ---- Completion ---------------------------------------------------------------------------------------------------

let known = { key: "", names: [] };

/** The series of the first chosen runs. */
async function seriesNames() {
  const runs = page.runs(COMPARED);
  const key = runs.join(" ");
  if (known.key !== key) {
    const found = await Promise.all(runs.map((id) => ask(runPath(id)).catch(() => ({ metrics: [] }))));
    known = { key, names: [...new Set(found.flatMap((run) => run.metrics.map((metric) => metric.name)))] };
  }
  return known.names;
}

const plain = /^[A-Za-z_]\w*$/;

/** Series, functions, orders and keys that begin with what was typed, or hold it. */
async function choices(token, words) {
  const low = token.text.toLowerCase();
  const series = (await seriesNames()).map((name) => ({ text: name, insert: plain.test(name) || token.isQuoted ? name : `"${name}"`, more: "series" }));
  const fits = [...series, ...(token.isQuoted ? [] : words)].filter((one) => one.text.toLowerCase().includes(low));
  return fits.sort((one, other) => Number(other.text.toLowerCase().startsWith(low)) - Number(one.text.toLowerCase().startsWith(low)));
}

/** The name before the caret. */
function tokenOf(before) {
  const found = before.match(/(["']?)([A-Za-z_][\w./-]*)$/);
  return found && { start: before.length - found[2].length, text: found[2], isQuoted: found[1] !== "" };
}

/** Take the editor: `runs` gives the ids of chosen runs, the others are called with what was answered. */
export function takeEditor(calls, words) {
  page = calls;
  complete(text, { language: { tokenOf, choicesFor: (token) => choices(token, words) }, isCaret: true });
  const checkSoon = gathered(() => check(), PAUSE);
  text.addEventListener("input", () => {
    checked = null;
    by("fires").textContent = "";
    fit();
    page.onEdit();
    checkSoon();
  });
}

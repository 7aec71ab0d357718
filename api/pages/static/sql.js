// The page for SQL: a statement that completes as one types, its answer as a table and a chart, and its address.
import { chart, curveOf, tellIfMissing } from "./chart.js";
import { stylesOf } from "./colours.js";
import { complete } from "./completion.js";
import { address, ask, counted, duration, element, pageData, post, root, shown, toNumber } from "./dom.js";
import { problems, read, write } from "./state.js";
import { momentInWords } from "./times.js";

const by = (id) => document.getElementById(id);
const { views } = pageData();
const box = by("sql");

/** Longest statement that has an address in the API, and rows that the table shows. */
const MOST_IN_ADDRESS = 8000;
const MOST_ROWS = 500;

/** Curves of a chart, and values of a column that tell curves apart. */
const MOST_CURVES = 24;

/** Numbers that say where a value is, not what it is. */
const CLOCKS = new Set(["attempt", "rank", "seq", "step", "micro_step", "epoch", "time_ns", "elapsed_ns"]);

/** Views that have a column for each metric, their other columns, and metrics that the list of columns names. */
const WIDE = ["events", "steps", "evals", "saves"];
const OTHERS = new Set(["run_id", "value_lag", "attrs"]);
const MOST_NAMED = 12;

const WORDS = [
  ..."SELECT,FROM,WHERE,GROUP BY,GROUP BY ALL,ORDER BY,LIMIT,JOIN,LEFT JOIN,USING,ON,AS,AND,OR,NOT,IN,IS NULL,BETWEEN,LIKE,HAVING,DISTINCT,DESC".split(","),
  ..."CASE,WHEN,THEN,ELSE,END,WITH,UNION ALL,FILTER,OVER,PARTITION BY,QUALIFY,DESCRIBE,count(,sum(,min(,max(,avg(,median(,stddev(,quantile_cont(".split(","),
  ..."arg_min(,arg_max(,isfinite(,isnan(,abs(,round(,coalesce(,greatest(,least(,lag(,row_number(,series(,rolling(,spiking_samples(".split(","),
];

read({ q: "" });

// ---- Completion ---------------------------------------------------------------------------------------------------

/** The columns of each view, read once. */
const columns = new Map();

async function readColumns() {
  const sql = "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal ORDER BY table_name, column_index";
  const { rows } = await post("/api/v1/query", { sql });
  for (const [view, column] of rows) columns.set(view, [...(columns.get(view) ?? []), column]);
  for (const place of document.querySelectorAll("[data-view]")) place.textContent = listOf(columns.get(place.dataset.view) ?? []);
}

/** The columns of a view; of many metrics, which are columns of each wide view, some. */
function listOf(names) {
  const metrics = new Set(WIDE.map((view) => columns.get(view) ?? []).reduce((one, other) => one.filter((name) => other.includes(name))).filter((name) => !CLOCKS.has(name) && !OTHERS.has(name)));
  const own = names.filter((name) => metrics.has(name));
  if (own.length <= MOST_NAMED) return names.join(", ");
  const last = own[MOST_NAMED - 1];
  const hidden = new Set(own.slice(MOST_NAMED));
  return names.filter((name) => !hidden.has(name)).map((name) => (name === last ? `${name} and ${counted(hidden.size, "more metric")}` : name)).join(", ");
}

/** What is being typed: a name, a quoted name, or a metric within quotes. */
function tokenOf(before) {
  const quotes = before.split("'");
  if (quotes.length % 2 === 0) return { start: before.length - quotes.at(-1).length, text: quotes.at(-1), isText: true };
  const [text] = before.match(/"[^"]*$|[A-Za-z_][\w]*$|$/);
  return text ? { start: before.length - text.length, text, isText: false } : null;
}

const quoted = (name) => (/^[A-Za-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

async function choicesFor({ text, isText }) {
  if (isText) {
    const { items } = await ask(address("/api/v1/fields", { text, limit: 40 }));
    return items.filter(({ kind }) => kind === "metric").map(({ name, runs }) => ({ insert: name, text: name, more: counted(runs, "run") }));
  }
  const typed = text.replace('"', "").toLowerCase();
  const begins = (name) => name.toLowerCase().startsWith(typed);
  const named = views.filter((view) => new RegExp(`\\b${view}\\b`, "i").test(box.value));
  const known = new Map((named.length ? named : views).flatMap((view) => (columns.get(view) ?? []).map((column) => [column, view])));
  const own = [...known].filter(([column]) => begins(column) || (typed.length > 2 && column.toLowerCase().includes(typed)));
  return [
    ...own.map(([column, view]) => ({ insert: quoted(column), text: column, more: view })),
    ...(text.startsWith('"') ? [] : [
      ...views.filter(begins).map((view) => ({ insert: view, text: view, more: "view" })),
      ...WORDS.filter(begins).map((word) => ({ insert: word.endsWith("(") ? word : `${word} `, text: word, more: "" })),
    ]),
  ].sort((one, other) => Number(begins(other.text)) - Number(begins(one.text)));
}

// ---- The answer ---------------------------------------------------------------------------------------------------

const isNumber = ({ type }) => /^(u?int|float|double|decimal)/.test(type);
const isMoment = ({ type }) => /^(timestamp|date)/.test(type);

/** Where a value is on the axis of its column: a moment in seconds since 1970. A time without a zone is UTC, a date local. */
function placeOf(value, column) {
  if (value === null || !isMoment(column)) return toNumber(value);
  const text = !value.includes("T") ? `${value}T00:00` : /(Z|[+-]\d\d:?\d\d)$/.test(value) ? value : `${value}Z`;
  return Date.parse(text) / 1000;
}

function cell(value, column) {
  if (value === null) return element("span", { class: "faint" }, "null");
  if (column.name === "run_id") return element("a", { href: `${root}/runs/${encodeURIComponent(value)}` }, value);
  if (isNumber(column)) return element("span", { title: String(value) }, shown(value));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function showTable({ columns: heads, rows }) {
  const side = (column) => ({ class: isNumber(column) ? null : "left" });
  const head = element("tr", {}, heads.map((column) => element("th", { ...side(column), title: column.type }, column.name)));
  const body = rows.slice(0, MOST_ROWS).map((row) => element("tr", {}, row.map((value, index) => element("td", side(heads[index]), cell(value, heads[index])))));
  const table = element("table", { class: "answer" }, element("thead", {}, head), element("tbody", {}, body));
  by("rows").replaceChildren(element("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Rows" }, table));
}

/** The column of the axis to the right: a moment if it comes first, else the step, another moment, or the first number. */
function axisOf(heads) {
  if (heads.length && isMoment(heads[0])) return 0;
  return [({ name, ...column }) => isNumber(column) && name === "step", isMoment, isNumber].map((is) => heads.findIndex(is)).find((index) => index >= 0);
}

/** The curves in an answer: its numeric columns along an axis, for each value of a text. */
function curvesOf({ columns: heads, rows }) {
  const x = axisOf(heads);
  const others = heads.flatMap((column, index) => (isNumber(column) && index !== x ? [index] : []));
  const values = others.filter((index) => !CLOCKS.has(heads[index].name));
  const texts = heads.flatMap((column, index) => (isNumber(column) || isMoment(column) ? [] : [index]));
  const key = texts.find((index) => new Set(rows.map((row) => row[index])).size > 1);
  const groups = key === undefined ? [["", rows]] : [...Map.groupBy(rows, (row) => String(row[key]))];
  const shownValues = values.length ? values : others;
  const isStep = heads[x]?.name === "step";
  const found = groups.flatMap(([group, members]) => {
    const placed = members.map((row) => [placeOf(row[x], heads[x]), row]).filter(([at]) => Number.isFinite(at)).sort(([one], [other]) => one - other);
    const xs = placed.map(([at]) => at);
    return shownValues.map((index) => {
      const name = [group, shownValues.length > 1 || !group ? heads[index].name : ""].filter(Boolean).join(" ");
      return { run_id: name, metric: heads[index].name, kind: "", step: isStep ? xs : [], x: xs, value: placed.map(([, row]) => row[index]), n_raw: placed.length };
    });
  });
  const axis = isStep ? "step" : heads[x] && isMoment(heads[x]) ? "moment" : "metric";
  return { x: heads[x]?.name, axis, curves: found.filter((item) => new Set(item.x).size > 1) };
}

let plot = null;

function showChart(answer) {
  const { x, axis, curves } = curvesOf(answer);
  const drawn = curves.slice(0, MOST_CURVES);
  by("figure").hidden = !drawn.length;
  if (!drawn.length) return;
  const ends = drawn.flatMap((item) => [item.x[0], item.x.at(-1)]);
  const [from, to] = [Math.min(...ends), Math.max(...ends)];
  const span = axis === "moment" ? `, local time: ${momentInWords(from, to - from)} to ${momentInWords(to, to - from)}` : "";
  by("note").textContent = `over ${x}${span}${curves.length > drawn.length ? `, the first ${MOST_CURVES} of ${curves.length} curves` : ""}`;
  plot ??= chart(by("figure").querySelector(".plot"), { title: "SQL", tools: by("tools"), legend: by("legend"), onZoom: (from, to) => plot.change({ zoom: [from, to] }) });
  const styles = stylesOf(drawn.map((item) => item.run_id));
  plot.draw({ curves: drawn.map((item) => curveOf(item, { name: item.run_id, ...styles.get(item.run_id), isPlain: item.x.length > 60 })), axis, xName: axis === "step" ? undefined : x, zoom: [null, null] });
}

/** Show a refusal; the cursor goes to the place that it names, as in `LINE 2: SELECT los` above a caret. */
function showFault(text) {
  by("fault").hidden = !text;
  by("fault").textContent = text.replace(/(\^) (?=\S)/, "$1\n"); // The hint begins a line of its own.
  const place = text.match(/^LINE (\d+): (.*)\n( *)(\^+)/m);
  if (!place) return;
  const [whole, number, excerpt, indent, carets] = place;
  const line = box.value.split("\n")[number - 1];
  const known = excerpt.replace(/^\.{3}|\.{3}$/g, "");
  if (!line?.includes(known) || whole === undefined) return;
  const before = box.value.split("\n").slice(0, number - 1).reduce((sum, one) => sum + one.length + 1, 0);
  const at = before + line.indexOf(known) + indent.length - `LINE ${number}: `.length - (excerpt.startsWith("...") ? 3 : 0);
  box.focus();
  box.setSelectionRange(at, at + carets.length);
}

let requests = 0;

async function run() {
  const sql = box.value.trim();
  if (!sql) return;
  write({ q: box.value });
  const request = ++requests;
  by("said").textContent = "Running …";
  try {
    const answer = await post("/api/v1/query", { sql: box.value });
    if (request !== requests) return;
    showFault("");
    by("said").textContent = `${counted(answer.n_rows, "row")}, ${duration(answer.elapsed_s)}`;
    const isShort = answer.rows.length > MOST_ROWS;
    by("cut").hidden = !answer.truncated && !isShort;
    by("cut").textContent = [
      answer.truncated ? `The server returns at most ${shown(answer.row_limit)} rows; the statement has more.` : "",
      isShort ? `The table shows the first ${shown(MOST_ROWS)} rows; the address has all ${shown(answer.n_rows)}.` : "",
    ].join(" ");
    by("result").hidden = false;
    showTable(answer);
    showChart(answer);
  } catch (error) {
    if (request !== requests) return;
    by("said").textContent = "";
    by("result").hidden = true;
    showFault(error.status === undefined ? "The server does not answer." : error.message);
  }
}

// ---- The address --------------------------------------------------------------------------------------------------

function showAddress() {
  const isLong = box.value.length > MOST_IN_ADDRESS;
  const path = address("/api/v1/query", { format: by("form").value, sql: box.value });
  by("address").value = isLong ? "The statement is too long for an address" : box.value.trim() ? location.origin + root + path : "";
  by("copy").disabled = isLong || !box.value.trim();
}

by("copy").addEventListener("click", async () => {
  by("address").select();
  await navigator.clipboard?.writeText(by("address").value).catch(() => {}); // Without it, the reader copies what is selected.
  by("said").textContent = navigator.clipboard ? "Copied." : "Selected: copy it.";
});
by("form").addEventListener("change", showAddress);
box.addEventListener("input", showAddress);
by("statement").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  run();
});

by("problems").replaceChildren(...problems().map((sentence) => element("p", { class: "notice" }, sentence)));
tellIfMissing(by("result"));
complete(box, { language: { tokenOf, choicesFor }, isCaret: true });
readColumns().catch(() => {}); // Completion then knows the views alone.
showAddress();
run();

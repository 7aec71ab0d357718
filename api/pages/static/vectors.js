// Vectors over the steps of a run: histograms, such as those of gradients, and others as they are. On demand.
import { element, post, shown } from "./dom.js";
import { drawHeat, legendOf } from "./heat.js";

const place = document.getElementById("vectors");
const choice = document.getElementById("vector");
const plot = document.getElementById("vector-plot");
const said = document.getElementById("vector-said");

/** Columns and rows of a picture. */
const COLUMNS = 240;
const ROWS = 64;

/** Rows from one label of a histogram to the next, and labels of the elements of a vector. */
const TICK_ROWS = 16;
const LABELS = 8;

/** Histograms: the least and the greatest element, then the counts of equal bins between them. */
const isHistogram = (name) => /_hist(\/|$)/.test(name);

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

let drawn = null;

/** Have the part of the page read the names of the vectors when it is opened, and a vector when it is chosen. */
export function takeVectors(id) {
  if (!place) return;
  const query = async (sql) => (await post("/api/v1/query", { sql, run: id })).rows;
  const open = () => place.open && choice.disabled && offer(query).catch(say);
  place.addEventListener("toggle", open);
  open(); // A reader may have opened it before this script came.
  choice.addEventListener("change", () => show(query).catch(say));
  document.addEventListener("themechange", () => drawn && place.open && drawn());
}

const say = (error) => (said.textContent = error.message);

async function offer(query) {
  const names = (await query("SELECT DISTINCT name FROM vectors WHERE rank = 0 ORDER BY name")).map(([name]) => name);
  choice.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  choice.disabled = !names.length;
  if (names.length) await show(query);
}

/** Read a vector at evenly spaced events and draw it. */
async function show(query) {
  const name = choice.value;
  const rows = await query(`SELECT step, values, total FROM (
    SELECT step, values, row_number() OVER (ORDER BY attempt, seq) - 1 AS place, count(*) OVER () AS total
    FROM vectors WHERE name = ${quoted(name)} AND rank = 0 AND len(values) > 0
  ) WHERE place % greatest(1, ceil(total / ${COLUMNS})) = 0 ORDER BY place`);
  if (choice.value !== name || !rows.length) return;
  const [steps, values] = [rows.map(([step]) => step), rows.map(([, list]) => list.map(Number))];
  drawn = () => (isHistogram(name) ? drawHistogram(steps, values) : drawVector(steps, values));
  drawn();
  const total = Number(rows[0][2]);
  if (total > rows.length) said.append(element("span", {}, `${shown(rows.length)} of ${shown(total)} events`));
}

/** Histograms on one axis of values: each bin is spread over the rows that it overlaps. */
function drawHistogram(steps, values) {
  const ends = values.flatMap(([low, high]) => [low, high]).filter(Number.isFinite);
  const [least, greatest] = [Math.min(...ends), Math.max(...ends)];
  const size = (greatest - least) / ROWS || 1;
  const columns = values.map((one) => spread(one, least, size));
  const cells = Array.from({ length: ROWS }, (_, row) => columns.map((column, index) => (column[row] > 0 ? { value: column[row], step: steps[index] } : null)));
  const near = (row) => shown(Number((least + (row + 0.5) * size).toPrecision(3)));
  const share = (cell) => `${shown(Number((100 * (cell?.value ?? 0)).toPrecision(3)))} % of the elements`;
  const say = (row, column) => `${share(cells[row][column])} near ${near(row)}, step ${shown(steps[column])}`;
  const ticks = Array.from({ length: 1 + Math.floor(ROWS / TICK_ROWS) }, (_, index) => Math.min(ROWS - 1, index * TICK_ROWS)).map((row) => [row, near(row)]);
  paint("share of the elements by value and step", { x: steps, rows: cells, y: { ticks }, say });
}

/** Draw a picture, and say what its colours mean. */
function paint(text, picture) {
  drawHeat(plot, picture, { label: `of ${choice.value}` });
  said.replaceChildren(...[[text], ...legendOf(picture.rows)].map((parts) => element("span", {}, parts)));
}

/** The share of the elements in each row, from the least, the greatest and the counts of a histogram. */
function spread([low, high, ...counts], least, size) {
  const shares = new Array(ROWS).fill(0);
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!(total > 0) || !Number.isFinite(low) || !Number.isFinite(high)) return shares;
  const width = (high - low) / counts.length;
  counts.forEach((count, bin) => {
    const from = (low + bin * width - least) / size;
    const to = from + width / size;
    for (let row = Math.max(0, Math.floor(from)); row <= Math.min(ROWS - 1, Math.floor(to)); row += 1) {
      const part = to > from ? (Math.min(to, row + 1) - Math.max(from, row)) / (to - from) : Number(row === Math.min(ROWS - 1, Math.floor(from)));
      shares[row] += (Math.max(0, part) * count) / total;
    }
  });
  // Less than a hundredth of an element is what rounding leaves at the edge of a bin.
  return shares.map((share) => (share * total < 0.01 ? 0 : share));
}

/** A vector as it is: steps to the right, its elements upwards. */
function drawVector(steps, values) {
  const length = Math.max(...values.map((one) => one.length));
  const cellOf = (value, step) => (value === undefined ? null : Number.isFinite(value) ? { value, step } : { value: null, step, lost: String(value) });
  const rows = Array.from({ length }, (_, index) => values.map((one, column) => cellOf(one[index], steps[column])));
  const say = (row, column) => {
    const cell = rows[row][column];
    return `element ${row}: ${cell ? (cell.lost ?? shown(cell.value)) : "none"}, step ${shown(steps[column])}`;
  };
  const every = Math.ceil(length / LABELS);
  const ticks = rows.map((_, row) => [row, shown(row)]).filter(([row]) => row % every === 0);
  paint("values by index and step", { x: steps, rows, y: { title: "element", ticks }, say });
}

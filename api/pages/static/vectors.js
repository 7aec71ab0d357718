// Vectors over the steps of a run: histograms, such as those of gradients, and others as they are. On demand.
import { element, post, shown } from "./dom.js";
import { heatBar, heatOf } from "./family_plots.js";
import { drawHeat } from "./plots.js";

const place = document.getElementById("vectors");
const choice = document.getElementById("vector");
const plot = document.getElementById("vector-plot");
const said = document.getElementById("vector-said");

/** Columns and rows of a picture. */
const COLUMNS = 240;
const ROWS = 64;

/** Histograms: the least and the greatest element, then the counts of equal bins between them. */
const isHistogram = (name) => /_hist(\/|$)/.test(name);

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

let drawn = null;

/** Have the part of the page read the names of the vectors when it is opened, and a vector when it is chosen. */
export function takeVectors(id) {
  if (!place) return;
  const query = async (sql) => (await post("/api/v1/query", { sql, run: id })).rows;
  place.addEventListener("toggle", () => place.open && choice.disabled && offer(query).catch(say));
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

/** Say what the colours of the picture mean. */
function explain(text, scale) {
  said.replaceChildren(element("span", {}, text), scale ? element("span", {}, heatBar(scale)) : "");
}

/** Histograms on one axis of values: each bin is spread over the rows that it overlaps. */
function drawHistogram(steps, values) {
  const ends = values.flatMap(([low, high]) => [low, high]).filter(Number.isFinite);
  const [least, greatest] = [Math.min(...ends), Math.max(...ends)];
  const size = (greatest - least) / ROWS || 1;
  const columns = values.map((one) => spread(one, least, size));
  const rows = Array.from({ length: ROWS }, (_, row) => columns.map((column) => (column[row] > 0 ? column[row] : null)));
  const { heat, scale } = heatOf(steps, rows);
  heat.y = Array.from({ length: ROWS }, (_, row) => least + (row + 0.5) * size);
  heat.text = rows.map((row) => row.map((share) => (share ? `${shown(Number((100 * share).toPrecision(3)))} % of the elements` : "")));
  heat.hovertemplate = "%{text}<br>near %{y:.3g}, step %{x:,d}<extra></extra>";
  drawHeat(plot, [heat], { look: choice.value, yaxis: { exponentformat: "e" } });
  explain("share of the elements by value and step", scale);
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
  const rows = Array.from({ length }, (_, index) => values.map((one) => one[index] ?? null));
  const { heat, scale } = heatOf(steps, rows);
  heat.text = rows.map((row) => row.map((value) => (value === null ? "" : shown(value))));
  heat.hovertemplate = "element %{y}: %{text}<br>step %{x:,d}<extra></extra>";
  drawHeat(plot, [heat], { look: choice.value });
  explain("values by index and step", scale);
}

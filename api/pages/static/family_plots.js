// Draws a family of series in one panel: a line for each member, coloured by its number, or a heat map.
import { curveOf, distinct } from "./chart.js";
import { colour } from "./colours.js";
import { element, shown, toNumber } from "./dom.js";
import { drawHeat, plain } from "./plots.js";

/** Columns of a heat map: more are narrower than a pixel or two. */
const COLUMNS = 240;

/** Values that all members of a family request together, and each at least and at most. */
const POINTS_IN_ALL = 24000;
const FEWEST = 240;
const MOST = 800;

/** Members whose lines are as wide as that of a single series; of more, lines are thin. */
const WIDE = 16;

/** Values of a line that has a dot at each. */
const DOTTED = 12;

/** Labels of the members on the axis of a heat map. */
const LABELS = 8;

/** Points for each series of a family. */
export const pointsOf = (members) => Math.min(MOST, Math.max(FEWEST, Math.round(POINTS_IN_ALL / members)));

/** The series of one kind of event, the one with the most values, in the order of the members. */
export function seriesOf(panel, items) {
  const filled = distinct(items.filter((item) => item.step.length));
  const counts = new Map();
  for (const item of filled) counts.set(item.kind, (counts.get(item.kind) ?? 0) + item.n_raw);
  const kind = [...counts].sort((one, other) => other[1] - one[1])[0]?.[0];
  const byMetric = new Map(filled.filter((item) => item.kind === kind).map((item) => [item.metric, item]));
  const members = panel.members.filter((member) => byMetric.has(member.metric));
  return members.map((member) => ({ ...member, item: byMetric.get(member.metric) }));
}

/** A member in words: `block 3`. */
export const nameOf = (member) => `${member.word} ${member.number}`.trim();

/** A curve for each member of a family, coloured by its number. */
export function curvesOf(members) {
  const width = members.length > WIDE ? 0.9 : 1.3;
  const places = placesOf(members);
  return members.map((member, index) => curveOf(member.item, { name: nameOf(member), colour: between(colours("--depth"), places[index]), width, isPlain: member.item.x.length > DOTTED }));
}

/** What the colours of the lines mean: a bar from the lowest number to the highest. */
export const depthBar = (members) => [`${nameOf(members[0])} `, barOf("--depth"), ` ${members.at(-1).number}`];

/** What the colours of a heat map mean. */
export const heatBar = ({ low, high, isLog }) => (low === high ? [shown(brief(low))] : [`${shown(brief(low))} `, barOf("--heat"), ` ${shown(brief(high))}${isLog ? ", logarithmic" : ""}`]);

const brief = (value) => Number(value.toPrecision(3));

function barOf(name) {
  const bar = element("i", { class: "scale" });
  bar.style.background = `linear-gradient(to right, ${colours(name).join(", ")})`;
  return bar;
}

/** Draw a family as a heat map: the axis of the plots to the right, members upwards. Return what the caption says. */
export function drawFamilyHeat(div, members, axis, marks) {
  const cells = cellsOf(members.map((member) => member.item));
  const { heat, scale } = heatOf(cells.x, cells.rows.map((row) => row.map((cell) => cell?.value ?? null)));
  heat.customdata = cells.rows.map((row) => row.map((cell) => cell?.step));
  heat.text = cells.rows.map((row, index) => row.map((cell) => (cell ? `${plain(nameOf(members[index]))}: ${shown(cell.value)}` : "")));
  heat.hovertemplate = "%{text}<br>step %{customdata:,d}<extra></extra>";
  drawHeat(div, [heat, ...lostOf(members, cells), ...marks], { axis, height: Math.max(230, 60 + 3 * members.length), yaxis: ticksOf(members), look: "family" });
  const parts = [[`${nameOf(members[0])} to ${members.at(-1).number}`], ...(scale ? [heatBar(scale)] : [])];
  return cells.isBinned ? [...parts, ["greatest value of each column"]] : parts;
}

/** A heat map of rows of values, null where there is none, and its scale: logarithmic if all values are positive. */
export function heatOf(x, rows) {
  const values = rows.flat().filter(Number.isFinite);
  const [low, high] = [values.reduce((least, value) => Math.min(least, value), Infinity), values.reduce((most, value) => Math.max(most, value), -Infinity)];
  const isLog = low > 0;
  const toScale = isLog ? Math.log10 : (value) => value;
  const stops = colours("--heat");
  const heat = {
    type: "heatmap",
    x,
    y: rows.map((_, index) => index),
    z: rows.map((row) => row.map((value) => (Number.isFinite(value) ? toScale(value) : null))),
    hoverongaps: false,
    // A gap of no pixel: without one, the library sets a style attribute, which the page's policy refuses. So does its own
    // bar of colours.
    xgap: 0.01,
    showscale: false,
    colorscale: stops.map((stop, index) => [index / (stops.length - 1), stop]),
    ...(low < high ? { zmin: toScale(low), zmax: toScale(high) } : {}),
  };
  return { heat, scale: values.length ? { low, high, isLog } : null };
}

/** Values on a grid: a column for each place, or for equal parts of the axis, where a cell has the greatest of its values. */
function cellsOf(items) {
  const places = [...new Set(items.flatMap((item) => item.x))].sort((one, other) => one - other);
  const fewest = Math.min(...items.map((item) => (item.sampled ? item.x.length / 4 : COLUMNS)));
  const isBinned = places.length > COLUMNS || items.some((item) => item.sampled);
  const count = isBinned ? Math.max(1, Math.floor(Math.min(COLUMNS, fewest, places.length))) : places.length;
  const [first, last] = [places[0], places.at(-1)];
  const size = (last - first) / count || 1;
  const columnOf = isBinned ? (x) => Math.min(count - 1, Math.floor((x - first) / size)) : (x) => columns.get(x);
  const columns = new Map(places.map((x, index) => [x, index]));
  const x = isBinned ? Array.from({ length: count }, (_, index) => first + (index + 0.5) * size) : places;
  const rows = items.map((item) => {
    const row = new Array(count).fill(null);
    item.value.forEach((text, index) => {
      const value = toNumber(text);
      const column = columnOf(item.x[index]);
      if (Number.isFinite(value) && !(row[column]?.value >= value)) row[column] = { value, step: item.step[index] };
    });
    return row;
  });
  return { x, rows, isBinned };
}

/** Marks where members have a value that is not finite. */
function lostOf(members, cells) {
  const lost = members.flatMap(({ item, ...member }, row) =>
    item.value.flatMap((value, index) => (Number.isFinite(toNumber(value)) ? [] : [{ x: item.x[index], row, step: item.step[index], text: `${nameOf(member)}: ${value}` }])),
  );
  if (!lost.length || !cells.x.length) return [];
  return [{
    type: "scatter",
    mode: "markers",
    x: lost.map((one) => one.x),
    y: lost.map((one) => one.row),
    customdata: lost.map((one) => one.step),
    text: lost.map((one) => plain(one.text)),
    name: "not finite",
    showlegend: false,
    marker: { symbol: "x-thin-open", size: 6, color: colour("--stop"), line: { width: 1.5 } },
    hovertemplate: "%{text}<br>step %{customdata:,d}<extra></extra>",
  }];
}

/** Some members' numbers on the axis of a heat map. */
function ticksOf(members) {
  const every = Math.ceil(members.length / LABELS);
  const tickvals = members.map((_, index) => index).filter((index) => index % every === 0);
  return { tickmode: "array", tickvals, ticktext: tickvals.map((index) => String(members[index].number)), range: [-0.5, members.length - 0.5], title: { text: plain(members[0].word), standoff: 4, font: { size: 11, color: colour("--faint") } } };
}

/** Where each member is between the first (0) and the last (1), by its number. */
function placesOf(members) {
  const first = members[0].number;
  const span = members.at(-1).number - first || 1;
  return members.map((member) => (member.number - first) / span);
}

const colours = (name) => colour(name).split(",").map((text) => text.trim());

/** A colour at a place between the first (0) and the last (1) of a list of `#rrggbb`. */
function between(stops, place) {
  const at = place * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const parts = [1, 3, 5].map((start) => {
    const [from, to] = [stops[low], stops[low + 1]].map((stop) => Number.parseInt(stop.slice(start, start + 2), 16));
    return Math.round(from + (at - low) * (to - from));
  });
  return `rgb(${parts.join(", ")})`;
}

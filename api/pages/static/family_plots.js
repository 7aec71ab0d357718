// Draws a family of series in one panel: a line for each member, coloured by its number, or a heat map.
import { curveOf, distinct } from "./chart.js";
import { colours, depthAt } from "./colours.js";
import { element, shown, toNumber } from "./dom.js";

/** Columns of a heat map: more are narrower than a pixel or two. */
const COLUMNS = 240;

/** Values that all members of a family request together, and each at least and at most. */
const POINTS_IN_ALL = 24000;
const FEWEST = 240;
const MOST = 400;

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
  return members.map((member, index) => curveOf(member.item, { name: nameOf(member), colour: depthAt(places[index]), width, isPlain: member.item.x.length > DOTTED }));
}

/** What the colours of the lines mean: a bar from the lowest number to the highest. */
export function depthBar(members) {
  const bar = element("i", { class: "scale" });
  bar.style.background = `linear-gradient(to right, ${colours("--depth").join(", ")})`;
  return [`${nameOf(members[0])} `, bar, ` ${members.at(-1).number}`];
}

/** Draw a family as a heat map: the axis of the plots to the right, members upwards. Return what the caption says. */
export async function drawFamilyHeat(div, members, options) {
  const { drawHeat, legendOf, placeInWords } = await import("./heat.js"); // Most visits show none.
  const { x, rows, isBinned } = cellsOf(members.map((member) => member.item));
  const say = (row, column) => {
    const cell = rows[row][column];
    const where = [placeInWords(options.axis, x[column], x.at(-1) - x[0], options.xName)];
    if (!cell) return `${nameOf(members[row])}: no value at ${where}`;
    const values = [cell.lost, Number.isFinite(cell.value) && shown(cell.value)].filter(Boolean).join(", otherwise ");
    return [`${nameOf(members[row])}: ${values}`, ...(options.axis === "step" ? [] : where), `step ${shown(cell.step)}`].join(", ");
  };
  drawHeat(div, { x, rows, y: ticksOf(members), say }, { height: Math.max(230, 60 + 3 * members.length), ...options });
  const parts = [[`${nameOf(members[0])} to ${members.at(-1).number}`], ...legendOf(rows)];
  return isBinned ? [...parts, ["greatest value of each column"]] : parts;
}

/**
 * Values on a grid: a column for each place, or for equal parts of the axis. A cell has the greatest of its values, the
 * first that is not finite, and the step of the latter or else of the former.
 */
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
      const cell = (row[column] ??= { value: null, step: item.step[index], lost: null });
      if (!Number.isFinite(value)) Object.assign(cell, cell.lost ? {} : { lost: String(text), step: item.step[index] });
      else if (!(cell.value >= value && cell.value !== null)) Object.assign(cell, { value, ...(cell.lost ? {} : { step: item.step[index] }) });
    });
    return row;
  });
  return { x, rows, isBinned };
}

/** Some members' numbers on the axis of a heat map. */
function ticksOf(members) {
  const every = Math.ceil(members.length / LABELS);
  return { title: members[0].word, ticks: members.map((member, row) => [row, String(member.number)]).filter(([row]) => row % every === 0) };
}

/** Where each member is between the first (0) and the last (1), by its number. */
function placesOf(members) {
  const first = members[0].number;
  const span = members.at(-1).number - first || 1;
  return members.map((member) => (member.number - first) / span);
}

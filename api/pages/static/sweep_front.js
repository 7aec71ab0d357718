// The front of a sweep: what its best variants save and cost, in and out of sample, as a picture and as a table.
import { counted, element, percent, shown, table, toNumber } from "./dom.js";
import { placeTicks, valueTicks } from "./ticks.js";

const SVG = "http://www.w3.org/2000/svg";

/** Values that a sweep tries of a param that has a slider, and params that it varies at most. */
const VALUES = 7;
const MOST_PARAMS = 3;

/** Size of the picture, and the room around it for labels. */
const [WIDTH, HEIGHT] = [560, 300];
const ROOM = { left: 56, right: 16, top: 16, bottom: 40 };

/** The values to try: those in the braces of sentences, or some over the sliders of the first params. */
export function axesOf(checked) {
  if (!checked?.ok) return {};
  const tried = Object.entries(checked.choices).filter(([, values]) => values.length > 1);
  if (tried.length) return Object.fromEntries(tried);
  const spread = ([name, [min, max, step]]) => {
    const value = (index) => Number((min + Math.round(((max - min) * index) / (VALUES - 1) / step) * step).toPrecision(12));
    return [name, [...new Set(Array.from({ length: VALUES }, (_, index) => value(index)))]];
  };
  return Object.fromEntries(Object.entries(checked.ranges).slice(0, MOST_PARAMS).map(spread).filter(([, values]) => values.length > 1));
}

const known = (value) => Number.isFinite(toNumber(value));
const share = (value, digits) => (known(value) ? percent(value, digits) : "–");

/** A point of the front: what it saves and costs in sample and, with a split, out of sample. */
function pointsOf(result) {
  const outside = new Map(result.out_of_sample.map((one) => [one.variant, one]));
  const certified = result.certification?.certified;
  const isCertified = (variant) => Boolean(certified) && Object.entries(certified).every(([name, value]) => variant[name] === value);
  const rows = result.variants.map((variant, index) => ({ variant, index, isCertified: isCertified(variant) }));
  return rows.filter(({ index, isCertified: is }) => result.front.includes(index) || is).map((one) => {
    const { variant } = one;
    const out = outside.get(one.index);
    const ofSteps = variant.steps_saved / variant.steps; // Runs that count different things have no sum of steps.
    return {
      ...one, settings: Object.fromEntries(Object.keys(result.axes).map((name) => [name, variant[name]])),
      saved: Number.isFinite(ofSteps) ? ofSteps : toNumber(variant.share_saved), regret: toNumber(variant.mean_regret),
      outSaved: out ? Number(out.out_of_sample_saved_share) : NaN, outRegret: out ? Number(out.out_of_sample_regret) : NaN,
    };
  });
}

const labelOf = (point) => Object.entries(point.settings).map(([name, value]) => `${name} = ${shown(value)}`).join(", ");

/** What is shown of a sweep; `take` is called with the params of the variant that the reader chooses. */
export function frontOf(result, take) {
  const points = pointsOf(result);
  const parts = [element("h2", {}, `Sweep: ${counted(result.variants.length, "variant")} over ${counted(result.runs.length, "run")}`), ...saidOf(result, points)];
  if (points.length) parts.push(element("figure", { class: "front-plot" }, picture(points, take)), tableOf(result, points, take));
  return parts;
}

function saidOf(result, points) {
  const [headline, ...why] = result.certification?.answer ?? [];
  const said = headline ? [element("p", {}, element("b", {}, headline)), element("p", {}, why.join(" "))] : [];
  const legend = [];
  if (!points.length) legend.push("No variant can be judged: no metric judges the runs, or none of the variants fires.");
  legend.push(
    result.split
      ? "● in sample: the runs that chose a variant judge it. ○ out of sample: other families of runs judge it."
      : `● in sample: the runs that chose a variant judge it, so others will do worse. ${result.split_refused}`,
  );
  if (points.some((point) => point.isCertified)) legend.push("The green ring marks the certified variant.");
  return [...said, element("p", { class: "legend" }, legend.join(" "))];
}

/** Ticks of shares from 0 to an end, at round numbers of percent. */
const shareTicks = (ticks, [from, to], size) => {
  const { values, labels } = ticks(100 * from, 100 * to, size);
  return values.map((value, index) => [value / 100, `${labels[index]}%`]);
};

/** Ends of an axis around some numbers, from 0 on. */
function spanOf(numbers) {
  const finite = numbers.filter(Number.isFinite);
  const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
  return low === high ? [low, low + 0.01] : [low, high + (high - low) * 0.05];
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function picture(points, take) {
  const xs = spanOf(points.flatMap((one) => [one.saved, one.outSaved]));
  const ys = spanOf(points.flatMap((one) => [one.regret, one.outRegret]));
  const x = (value) => ROOM.left + ((value - xs[0]) / (xs[1] - xs[0])) * (WIDTH - ROOM.left - ROOM.right);
  const y = (value) => HEIGHT - ROOM.bottom - ((value - ys[0]) / (ys[1] - ys[0])) * (HEIGHT - ROOM.top - ROOM.bottom);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "Steps saved and mean regret of the best variants" });
  for (const [across, label] of shareTicks((...ends) => placeTicks(...ends, "metric"), xs, WIDTH - ROOM.left - ROOM.right)) {
    svg.append(
      drawn("line", { x1: x(across), x2: x(across), y1: ROOM.top, y2: HEIGHT - ROOM.bottom, class: "grid" }),
      drawn("text", { x: x(across), y: HEIGHT - ROOM.bottom + 15, "text-anchor": "middle" }, label),
    );
  }
  for (const [up, label] of shareTicks(valueTicks, ys, HEIGHT - ROOM.top - ROOM.bottom)) {
    svg.append(
      drawn("line", { x1: ROOM.left, x2: WIDTH - ROOM.right, y1: y(up), y2: y(up), class: "grid" }),
      drawn("text", { x: ROOM.left - 6, y: y(up) + 4, "text-anchor": "end" }, label),
    );
  }
  svg.append(drawn("text", { x: (WIDTH + ROOM.left) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "steps saved"), drawn("text", { x: ROOM.left, y: 11 }, "mean regret"));
  for (const point of points) if (known(point.saved) && known(point.regret)) svg.append(markOf(point, x, y, take));
  return svg;
}

/** A point that a click or Enter takes: its place in sample, joined to that out of sample. */
function markOf(point, x, y, take) {
  const said = `${labelOf(point)}: saves ${share(point.saved)}, regret ${share(point.regret, 2)}${point.isCertified ? ", certified" : ""}`;
  const group = drawn("g", { tabindex: "0", role: "button", "aria-label": `Take ${said}`, class: point.isCertified ? "certified" : "" }, drawn("title", {}, said));
  const [px, py] = [x(point.saved), y(point.regret)];
  if (known(point.outSaved) && known(point.outRegret)) {
    group.append(drawn("line", { x1: px, y1: py, x2: x(point.outSaved), y2: y(point.outRegret), class: "link" }), drawn("circle", { cx: x(point.outSaved), cy: y(point.outRegret), r: 8, class: "out" }));
  }
  if (point.isCertified) group.append(drawn("circle", { cx: px, cy: py, r: 12, class: "ring" }));
  group.append(drawn("circle", { cx: px, cy: py, r: 5.5, class: "in" }), drawn("circle", { cx: px, cy: py, r: 14, class: "hit" }));
  group.addEventListener("click", () => take(point.settings));
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    take(point.settings);
  });
  return group;
}

function tableOf(result, points, take) {
  const out = result.split ? ["saved, out of sample", "regret, out of sample"] : [];
  const rows = points.map((point) => [
    element("span", {}, element("button", { type: "button", onclick: () => take(point.settings), "aria-label": `Take ${labelOf(point)}` }, "Take"), point.isCertified ? [" ", element("span", { class: "chip exact" }, "certified")] : null),
    ...Object.values(point.settings).map(shown),
    `${shown(point.variant.stopped)} of ${shown(point.variant.could_fire)}`, share(point.saved), share(point.regret, 2),
    ...(result.split ? [share(point.outSaved), share(point.outRegret, 2)] : []), share(point.variant.share_lost),
  ]);
  return table(["", ...Object.keys(result.axes), "stops", "saved", "regret", ...out, "lost"], rows, [0]);
}

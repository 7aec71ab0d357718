// Curves by plotly, in the page's own colours, with what happened to the run drawn on them.
import { isTouch, toNumber } from "./dom.js";
import { inWords, precisionOf, spanTicks } from "./spans.js";

const Plotly = globalThis.Plotly;

/** Points of a curve: more than a plot is wide in pixels; the API keeps extremes. */
export const POINTS = 1200;

/** Pixels to the left and right of the curves. */
const SIDES = { l: 52, r: 12 };

/** Vertical lines are drawn for so many decisions at most, or for those alone that stop; each has its mark all the same. */
const MOST_LINES = 12;

/** Rings are drawn for so many decisions at most: more are not told apart. */
const MOST_RINGS = 40;

/** Colours of runs and of kinds of events, told apart on light and on dark. */
export const COLOURS = ["#3b82c4", "#d9822b", "#3f9d6b", "#b84f8c", "#8a6fd1", "#c44e4e", "#2fa3a3", "#a98a2b", "#7a8794", "#5b8c3a"];

/** What each kind of mark looks like; `height` is its place between the bottom (0) and the top (1) of the plot. */
const MARKS = {
  decision: { symbol: "triangle-down", size: 10, height: 0.97, colour: "--stop", title: "decision" },
  save: { symbol: "line-ns-open", size: 5, height: 0.02, line: 1, opacity: 0.6, colour: "--faint", title: "checkpoint" },
  epoch: { symbol: "line-ns-open", size: 4, height: 1, line: 1, opacity: 0.6, colour: "--faint", title: "epoch" },
  annotation: { symbol: "diamond", size: 8, height: 0.9, colour: "--note", title: "annotation" },
  phase: { symbol: "square", size: 5, height: 0.05, colour: "--faint", title: "phase" },
  gap: { symbol: "x-thin-open", size: 7, height: 0.08, line: 1.5, colour: "--stop", title: "not finite" },
};

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Where a step lies on the axis of a series: between its neighbours, where it has no value there. */
export function placeOf(item, step) {
  const steps = item.step;
  if (!steps.length) return null;
  let low = 0;
  let high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  if (low === 0 || steps[low] <= step) return item.x[low];
  const share = (step - steps[low - 1]) / (steps[low] - steps[low - 1]);
  return item.x[low - 1] + share * (item.x[low] - item.x[low - 1]);
}

/** Series without those that say again what an earlier one said: some loops report a value as two kinds of events. */
export const distinct = (items) =>
  items.filter((item, index) => {
    const says = (one) => JSON.stringify([one.run_id, one.metric, one.step, one.value]);
    return items.findIndex((other) => says(other) === says(item)) === index;
  });

/** A series of the API as a trace. On an axis of time, each value tells when it was and at which step. */
export function lineOf(item, style = {}) {
  const isTime = item.axis === "elapsed";
  const precision = precisionOf(item.x[0], item.x.at(-1));
  const isSparse = item.x.length <= 60;
  const isDense = item.x.length > 600;
  return {
    type: "scatter",
    mode: isSparse ? "lines+markers" : "lines",
    x: item.x,
    y: item.value.map((value) => (Number.isFinite(toNumber(value)) ? Number(value) : null)),
    customdata: item.step,
    name: style.name ?? item.kind ?? item.metric,
    line: { width: style.width ?? (isDense ? 1.2 : 1.5), color: style.colour, dash: style.dash },
    marker: { size: 4, color: style.colour },
    opacity: style.opacity ?? 1,
    cliponaxis: false,
    connectgaps: false,
    text: isTime ? item.x.map((seconds) => inWords(seconds, precision)) : undefined,
    hovertemplate: `%{y:.5g}${isTime ? "<br>%{text}, step %{customdata:,d}" : ""}<extra>${plain(style.name ?? item.kind ?? "")}</extra>`,
  };
}

/** The marks of one kind as a trace on an axis of its own, so that they stay where they are when values move. */
export function marksOf(kind, item, marks) {
  const look = MARKS[kind];
  const placed = marks.map((mark) => [placeOf(item, mark.step), mark]).filter(([x]) => x !== null);
  return {
    type: "scatter",
    mode: "markers",
    x: placed.map(([x]) => x),
    y: placed.map(([, mark]) => mark.height ?? look.height),
    yaxis: "y2",
    customdata: placed.map(([, mark]) => mark.step),
    text: placed.map(([, mark]) => inLines(mark.text)),
    name: look.title,
    cliponaxis: false,
    marker: { symbol: look.symbol, size: look.size, opacity: look.opacity ?? 1, line: { width: look.line ?? 0 }, color: placed.map(([, mark]) => mark.colour ?? colour(look.colour)) },
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** Where decisions meet the curve; nothing where there are none, or too many to be told apart. */
export function firingsOf(item, marks) {
  if (!marks.length || marks.length > MOST_RINGS) return [];
  const at = marks.map((mark) => item.step.findIndex((step) => step >= mark.step)).filter((index) => index >= 0);
  const ring = {
    type: "scatter",
    mode: "markers",
    x: at.map((index) => item.x[index]),
    y: at.map((index) => (Number.isFinite(toNumber(item.value[index])) ? Number(item.value[index]) : null)),
    name: "fired",
    cliponaxis: false,
    marker: { symbol: "circle-open", size: 7, color: colour("--stop"), line: { width: 1.5 } },
    hoverinfo: "skip",
  };
  return [ring];
}

/** The values of a series that are not finite, as marks. */
export const gapsOf = (item) =>
  item.value.flatMap((value, index) =>
    Number.isFinite(toNumber(value)) ? [] : [{ step: item.step[index], text: `step ${item.step[index]}: ${value}` }],
  );

/**
 * Vertical lines at decisions and attempts, bands over what annotations span, and what a stop would have spared. Of
 * decisions too many for a line each, those that are `isStop` have one.
 */
export function shapesOf(item, { decisions = [], attempts = [], spans = [], spared = null }) {
  const line = (step, name, dash) => {
    const x = placeOf(item, step);
    return x === null ? [] : [{ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", opacity: 0.7, line: { width: 1, color: colour(name), dash } }];
  };
  const band = (from, to, name) => {
    const x0 = placeOf(item, from);
    const x1 = placeOf(item, to);
    return x0 === null ? [] : [{ type: "rect", x0, x1, y0: 0, y1: 1, yref: "paper", line: { width: 0 }, fillcolor: colour(name), layer: "below" }];
  };
  const last = item.step.at(-1);
  return [
    ...decisions.filter((mark) => mark.isStop || decisions.length <= MOST_LINES).flatMap((mark) => line(mark.step, "--stop", "dot")),
    ...attempts.flatMap((attempt) => (attempt.from_step === null ? [] : line(attempt.from_step, "--faint", "dash"))),
    ...spans.flatMap((span) => band(span.step, span.last, "--span")),
    ...(spared !== null && spared < last ? band(spared, last, "--spared") : []),
  ];
}

/** The axis ends where the curves do, whatever room their marks would like. A single value stands in the middle. */
function ends(lines, axis) {
  const filled = lines.filter((trace) => trace.x.length);
  if (!filled.length) return {};
  const first = Math.min(...filled.map((trace) => trace.x[0]));
  const maxallowed = Math.max(...filled.map((trace) => trace.x.at(-1)));
  // Time is told from the beginning, which comes before the first value.
  const minallowed = axis === "elapsed" && first > 0 && first < maxallowed / 5 ? 0 : first;
  if (maxallowed > minallowed) return { autorangeoptions: { minallowed, maxallowed, include: minallowed } };
  const range = [minallowed - 1, minallowed + 1];
  return { step: { range, dtick: 1 }, elapsed: { range } }[axis] ?? {};
}

/** The axis of values: marks stand above the curves, a constant is not drawn as if it were zero, no label is cut off. */
function heights(lines, marks, log) {
  const finite = lines.flatMap((trace) => trace.y.filter((value) => value !== null && (!log || value > 0)));
  if (!finite.length) return {};
  const scale = log ? Math.log10 : (value) => value;
  const low = finite.reduce((least, value) => Math.min(least, scale(value)), Infinity);
  const high = finite.reduce((most, value) => Math.max(most, scale(value)), -Infinity);
  const size = finite.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const exponentformat = !log && size >= 1000 && size < 1e13 ? "SI" : "e";
  if (low === high) {
    const around = log ? 1 : Math.abs(low) / 2 || 1;
    return { exponentformat, range: [low - around, high + around] };
  }
  const room = marks.some((trace) => trace.name === MARKS.annotation.title) ? 0.2 : 0.12;
  const top = high + room * (high - low);
  const isMarked = marks.some((trace) => [MARKS.annotation.title, MARKS.decision.title].includes(trace.name));
  return { exponentformat, ...(isMarked ? { autorangeoptions: { include: log ? 10 ** top : top } } : {}) };
}

/** Ticks of an axis of time, for as much of it as the reader has zoomed to or, without a zoom, as the curves span. */
function timeTicks(div, span, uirevision) {
  const isZoomed = div.layout?.uirevision === uirevision && div.layout.xaxis.autorange === false;
  const { minallowed, maxallowed } = span.autorangeoptions ?? {};
  const [from, to] = isZoomed ? div.layout.xaxis.range : (span.range ?? [minallowed, maxallowed]);
  if (from === undefined) return {};
  const { values, labels } = spanTicks(from, to, div.clientWidth - SIDES.l - SIDES.r);
  return { tickmode: "array", tickvals: values, ticktext: labels };
}

/** The axis of marks: they stay where they are when values move. */
const MARKS_AXIS = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };

/** What all plots share: fonts, colours, grids and gestures. `xaxis` and `yaxis` add to it. */
function layoutOf({ xaxis, yaxis, axis, title = "", height = 230, hover = "x unified", legend = false, ...rest }) {
  const faint = colour("--faint");
  const grid = { gridcolor: colour("--rule"), zeroline: false, linecolor: colour("--rule"), tickfont: { color: faint }, layer: "below traces" };
  const place = { step: "step %{x:,d}", elapsed: "time of training" }[axis] ?? `${axis} %{x:.4g}`;
  return {
    height,
    margin: { ...SIDES, t: title ? 28 : 10, b: 28 },
    title: title ? { text: plain(title), x: 0, xanchor: "left", xref: "paper", pad: { l: 0 }, font: { size: 13, color: colour("--ink") } } : undefined,
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: colour("--paper"),
    hovermode: hover,
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--rule"), font: { color: colour("--ink"), size: 11 }, align: "left" },
    showlegend: legend,
    legend: { orientation: "h", x: 0, y: -0.16, yanchor: "top", font: { color: colour("--ink") } },
    xaxis: { ...grid, separatethousands: true, exponentformat: "none", unifiedhovertitle: { text: place }, spikethickness: 1, spikedash: "dot", spikecolor: faint, ...xaxis },
    yaxis: { ...grid, nticks: 6, automargin: true, ...yaxis },
    dragmode: isTouch ? false : "zoom",
    ...rest,
  };
}

const render = (div, traces, layout) => Plotly.react(div, traces, layout, { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false });

/** Draw or redraw curves. What the reader has zoomed to stays. */
export function draw(div, traces, { shapes = [], title = "", log = false, axis = "step", height = 230, legend = false, hover = "x unified" } = {}) {
  const lines = traces.filter((trace) => trace.yaxis !== "y2");
  const marks = traces.filter((trace) => trace.yaxis === "y2");
  const uirevision = `${axis} ${log}`;
  const span = ends(lines, axis);
  const ticks = axis === "elapsed" ? timeTicks(div, span, uirevision) : {};
  return render(div, traces, layoutOf({
    xaxis: { ...span, ...ticks },
    yaxis: { ...heights(lines, marks, log), type: log ? "log" : "linear" },
    yaxis2: MARKS_AXIS,
    axis, title, height, hover, legend, shapes, uirevision,
  }));
}

/** Draw or redraw a heat map and the marks on it. What the reader has zoomed to stays. */
export function drawHeat(div, traces, { axis = "step", height = 230, yaxis = {}, look = "heat" } = {}) {
  const uirevision = `${axis} ${look}`;
  const span = ends(traces.filter((trace) => trace.type === "heatmap"), axis);
  const ticks = axis === "elapsed" ? timeTicks(div, span, uirevision) : {};
  return render(div, traces, layoutOf({
    xaxis: { ticks: "", showspikes: false, ...span, ...ticks },
    yaxis: { fixedrange: true, showgrid: false, ticks: "", ...yaxis },
    yaxis2: MARKS_AXIS,
    axis, height, hover: "closest", uirevision,
  }));
}

/** Tell when the reader zooms along the axis: its two ends, or null twice for all of it. */
export function onZoom(div, tell) {
  div.on("plotly_relayout", (change) => {
    if (change["xaxis.autorange"]) tell(null, null);
    else if ("xaxis.range[0]" in change) tell(Number(change["xaxis.range[0]"]), Number(change["xaxis.range[1]"]));
  });
}

/** Characters of a line of a label. */
const LINE = 44;

/** Text in lines for a label: plotly breaks none, and cuts off what is wider than the plot. */
function inLines(text) {
  const lines = [""];
  for (const word of String(text).split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length > LINE) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.map(plain).join("<br>");
}

/** Text that plotly shows as it is: it would read some tags in it. */
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

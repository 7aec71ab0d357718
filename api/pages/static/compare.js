// The page that lays runs over each other.
import { address, ask, pageData, shown, toNumber } from "./dom.js";
import { COLOURS, distinct, draw, lineOf, onZoom } from "./plots.js";

const runs = pageData();
const [metric, axis, log] = ["metric", "axis", "log"].map((id) => document.getElementById(id));
const plot = document.getElementById("plot");
const legend = document.getElementById("legend");

/** Points of each curve, fewer beyond fifty runs, so that the page stays light. */
const POINTS = Math.max(40, Math.min(800, Math.floor(40000 / Math.max(1, runs.length))));

/** Between two looks at runs that are being written, in milliseconds. */
const PAUSE = Math.max(2000, 40 * runs.length);

const DASHES = ["solid", "dot", "dash", "dashdot", "longdash"];

let items = [];
let zoom = [null, null];
let listens = false;

/** Colour and dash of a run: after ten runs colours come again, dashed otherwise. */
const look = (index) => ({ colour: COLOURS[index % COLOURS.length], dash: DASHES[Math.floor(index / COLOURS.length) % DASHES.length] });

async function read() {
  try {
    const asked = { run: runs.map((run) => run.id), metric: metric.value, axis: axis.value, points: POINTS, from: zoom[0], to: zoom[1] };
    items = (await ask(address("/api/v1/series", asked))).items;
    show();
  } catch (error) {
    legend.textContent = error.message;
  }
}

function show() {
  const traces = [];
  const without = [];
  runs.forEach((run, index) => {
    const own = distinct(items.filter((item) => item.run_id === run.id && item.step.length));
    if (!own.length) without.push(run.name);
    for (const item of own) {
      const name = own.length > 1 ? `${run.name} (${item.kind})` : run.name;
      traces.push(lineOf(item, { ...look(index), name, opacity: 0.9 }));
    }
    sum(run, own[0]);
  });
  draw(plot, traces, { log: log.checked, axis: axis.value, height: 440 });
  plot.dataset.curves = String(traces.length);
  legend.textContent = without.length ? `${without.join(", ")}: no values of ${metric.value}.` : "";
  if (!listens) {
    listens = true;
    onZoom(plot, (from, to) => {
      zoom = [from, to];
      read();
    });
  }
}

/** The last and the extreme values of a run, in its row. */
function sum(run, item) {
  const row = document.querySelector(`tr[data-run="${CSS.escape(run.id)}"]`);
  const finite = (item?.value ?? []).map(toNumber).filter(Number.isFinite);
  row.querySelector(".last").textContent = item ? shown(toNumber(item.value.at(-1))) : "–";
  row.querySelector(".low").textContent = finite.length ? shown(Math.min(...finite)) : "–";
  row.querySelector(".high").textContent = finite.length ? shown(Math.max(...finite)) : "–";
}

if (runs.length) {
  runs.forEach((run, index) => {
    document.querySelector(`tr[data-run="${CSS.escape(run.id)}"] .swatch`).style.background = look(index).colour;
  });
  axis.addEventListener("change", () => {
    zoom = [null, null];
    read();
  });
  metric.addEventListener("change", () => {
    const here = new URL(location.href);
    here.searchParams.set("metric", metric.value);
    history.replaceState(null, "", here);
    read();
  });
  log.addEventListener("change", show);
  document.addEventListener("themechange", show);
  if (runs.some((run) => run.live)) setInterval(() => document.visibilityState === "visible" && read(), PAUSE);
  read();
}

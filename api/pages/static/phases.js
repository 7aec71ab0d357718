// Where the run spent its time: a band of its phases with their seconds and shares, and the paths of profiler traces.
import { counted, duration, element, percent, shown } from "./dom.js";
import { PALETTE } from "./colours.js";

const place = document.getElementById("phases");

/** Phases that have a colour and a line of their own in the band; the rest is there as one. */
const LISTED = 8;

const read = () => JSON.parse(document.getElementById("phase-data").textContent);

/** The longest spans, as marks for the curves. */
export function phaseMarks() {
  const { phases, spans } = read();
  const names = phases.map((phase) => phase.name);
  return spans.map((span) => ({ step: span.step, colour: colourOf(names.indexOf(span.name)), lane: laneOf(names.indexOf(span.name)), text: `step ${span.step}: ${span.name}, ${duration(span.seconds)}` }));
}

/** Show the band; nothing for a run without phases. */
export function showPhases() {
  const { elapsed_s: elapsed, phases, traces } = read();
  place.hidden = !phases.length;
  if (place.hidden) return;
  const isOpen = place.querySelector("details")?.open ?? false;
  const inPhases = phases.reduce((sum, phase) => sum + phase.own_s, 0);
  const rest = Math.max(0, elapsed - inPhases);
  const all = Math.max(elapsed, inPhases) || 1;
  const listed = phases.slice(0, LISTED);
  const parts = [
    ...listed.map((phase, index) => ({ name: phase.name, said: counted(phase.count, "span"), total: phase.total_s, own: phase.own_s, colour: colourOf(index) })),
    ...(phases.length > LISTED ? [othersOf(phases.slice(LISTED))] : []),
    { name: "outside of spans", said: "", total: rest, own: rest, colour: null },
  ];
  place.replaceChildren(
    element("h2", { class: "hidden" }, "Phases"),
    element("div", { class: "band", "aria-hidden": "true" }, parts.map((part) => piece(part, all))),
    element("ul", { class: "phases" }, parts.map((part) => line(part, all))),
    ...(traces.length ? [tracesOf(traces, isOpen)] : []),
  );
}

const colourOf = (index) => (index >= 0 && index < LISTED ? PALETTE[index] : null);

/** Spans of different phases end at the same step: each phase has its own height, in pixels. */
const laneOf = (index) => 7 * Math.min(index, LISTED);

function othersOf(phases) {
  const sum = (key) => phases.reduce((total, phase) => total + phase[key], 0);
  return { name: counted(phases.length, "other phase"), said: counted(sum("count"), "span"), total: sum("total_s"), own: sum("own_s"), colour: null };
}

function piece(part, all) {
  const made = element("i", { title: `${part.name}: ${duration(part.own)}` });
  made.style.width = `${(100 * part.own) / all}%`;
  if (part.colour) made.style.background = part.colour;
  return made;
}

/** A phase in words. The shares of all add up to one: time in a span within another counts for the inner one. */
function line(part, all) {
  const swatch = element("i", { class: "swatch" });
  if (part.colour) swatch.style.background = part.colour;
  const isNested = part.total - part.own > 0.001 * part.total;
  const own = isNested ? ` (${duration(part.own)} without the spans within)` : "";
  return element("li", { "data-phase": part.name }, swatch, element("b", {}, part.name), ` ${duration(part.total)}${own}, ${percent(part.own / all)}`, part.said ? element("span", { class: "faint" }, ` · ${part.said}`) : "");
}

function tracesOf(traces, isOpen) {
  const rows = traces.map((one) =>
    element("li", {}, `step ${shown(one.step)}, ${one.name}: `, element("code", {}, one.trace), " ", element("button", { type: "button", class: "quiet", onclick: (event) => copy(event.target, one.trace) }, "Copy")),
  );
  return element("details", { open: isOpen }, element("summary", {}, counted(traces.length, "profiler trace")), element("ul", { class: "phases traces" }, rows));
}

/** Copy a text; without permission, or without TLS, select it so that a key can copy it. */
async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "Selected";
  }
}

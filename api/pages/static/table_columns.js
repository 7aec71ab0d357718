// The columns of the table: chosen from a list that the server searches, ordered, kept in view, and made wide or narrow.
import { address, ask, counted, element, gathered } from "./dom.js";
import { read, write } from "./state.js";

/** Widths that the reader has chosen, in pixels by field, as this browser keeps them. */
const WIDTHS = "steptape-column-widths";

const NARROWEST = 40;

/** Most fields that a search lists. */
const LISTED = 50;

const sheet = new CSSStyleSheet();
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

const headings = () => [...document.querySelectorAll("table.list thead th[data-name]")];
const names = () => headings().map((heading) => heading.dataset.name);

function widths() {
  try {
    return JSON.parse(localStorage.getItem(WIDTHS)) ?? {};
  } catch {
    return {}; // Something else wrote it.
  }
}

/** Prepare the headings of a document: they can be dragged, and have an edge to pull. */
export function prepareHeadings(page) {
  for (const heading of page.querySelectorAll("table.list thead th[data-name]")) {
    heading.draggable = true;
    if (!heading.querySelector(".grip")) heading.append(element("i", { class: "grip", "aria-hidden": "true" }));
  }
}

/** Give the columns their widths, and those that stay in view their places. */
export function layOutColumns() {
  const chosen = widths();
  const all = headings();
  const rules = all.map(({ dataset: { name } }, index) =>
    chosen[name] ? `.list :is(th, td):nth-child(${index + 3}) { width: ${chosen[name]}px; min-width: ${chosen[name]}px; max-width: ${chosen[name]}px; }` : "",
  );
  sheet.replaceSync(`@media (min-width: 761px) { ${rules.join(" ")} }`);
  const row = document.querySelector("table.list thead tr");
  if (!row) return;
  let left = 0;
  const places = [...row.children].slice(0, 2 + read().pin).map((heading, index) => {
    const place = `.list tr > :nth-child(${index + 1}):is(.pick, .name, .pinned) { left: ${left}px; }`;
    left += heading.offsetWidth;
    return place;
  });
  sheet.replaceSync(`@media (min-width: 761px) { ${rules.join(" ")} ${places.join(" ")} }`);
}

const setColumns = (columns, pin = read().pin) => write({ columns: columns.join(","), pin: Math.min(pin, columns.length) });

function move(name, to) {
  const columns = names().filter((other) => other !== name);
  columns.splice(Math.max(0, to), 0, name);
  setColumns(columns);
}

/** Keep a column in view, after those that are; or no longer. */
function pin(name) {
  const columns = names();
  const count = read().pin;
  const isPinned = columns.indexOf(name) < count;
  const others = columns.filter((other) => other !== name);
  others.splice(isPinned ? count - 1 : count, 0, name);
  setColumns(others, isPinned ? count - 1 : count + 1);
}

function toggle(name) {
  const columns = names();
  const index = columns.indexOf(name);
  if (index < 0) setColumns([...columns, name]);
  else setColumns(columns.filter((other) => other !== name), read().pin - (index < read().pin ? 1 : 0));
}

// ---- Headings: drag, keys, edges ----------------------------------------------------------------------------------

let dragged = null;
const headingAt = (target) => target.closest?.("table.list thead th[data-name]");

document.addEventListener("dragstart", (event) => {
  dragged = headingAt(event.target)?.dataset.name ?? null;
  if (dragged) event.dataTransfer.setData("text/plain", dragged);
});
document.addEventListener("dragover", (event) => {
  if (dragged && headingAt(event.target)) event.preventDefault();
});
document.addEventListener("drop", (event) => {
  const heading = headingAt(event.target);
  if (!dragged || !heading) return;
  event.preventDefault();
  move(dragged, names().indexOf(heading.dataset.name));
  dragged = null;
});

document.addEventListener("keydown", (event) => {
  const heading = event.altKey && headingAt(event.target);
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!heading || !by) return;
  event.preventDefault();
  move(heading.dataset.name, names().indexOf(heading.dataset.name) + by);
});

document.addEventListener("pointerdown", (event) => {
  if (!event.target.matches?.(".grip")) return;
  event.preventDefault();
  const heading = headingAt(event.target);
  const [start, from] = [event.clientX, heading.offsetWidth];
  const pull = (moved) => {
    const kept = { ...widths(), [heading.dataset.name]: Math.max(NARROWEST, Math.round(from + moved.clientX - start)) };
    localStorage.setItem(WIDTHS, JSON.stringify(kept));
    layOutColumns();
  };
  const release = () => {
    document.removeEventListener("pointermove", pull);
    document.removeEventListener("pointerup", release);
  };
  document.addEventListener("pointermove", pull);
  document.addEventListener("pointerup", release);
});
document.addEventListener("dblclick", (event) => {
  if (!event.target.matches?.(".grip")) return;
  const { [headingAt(event.target).dataset.name]: _, ...kept } = widths();
  localStorage.setItem(WIDTHS, JSON.stringify(kept));
  layOutColumns();
});

// ---- The list of columns ------------------------------------------------------------------------------------------

const chooser = document.getElementById("chooser");
const find = document.getElementById("find-field");

const button = (text, title, act, isPressed = null) =>
  element("button", { type: "button", class: "quiet", title, "aria-label": title, "aria-pressed": isPressed, onclick: act }, text);

/** Show the columns of the table in the list; called after each change of the table. */
export function showColumns() {
  if (!chooser.open) return;
  const count = read().pin;
  const label = document.activeElement?.getAttribute("aria-label");
  document.getElementById("shown").replaceChildren(
    ...headings().map(({ dataset: { name } }, index) =>
      element(
        "li",
        {},
        element("span", { class: "grow" }, name.replace(/^(config|metric)\./, "")),
        button("⇤", `Keep ${name} in view`, () => pin(name), String(index < count)),
        button("↑", `Move ${name} up`, () => move(name, index - 1)),
        button("↓", `Move ${name} down`, () => move(name, index + 1)),
        button("×", `Remove ${name}`, () => toggle(name)),
      ),
    ),
  );
  if (label) chooser.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  for (const box of document.querySelectorAll("#found-fields input")) box.checked = names().includes(box.value);
}

const search = gathered(async () => {
  const text = find.value;
  const { items, found } = await ask(address("/api/v1/fields", { text, limit: LISTED })).catch(() => ({ items: [], found: 0 }));
  if (text !== find.value) return;
  const shown = new Set(names());
  document.getElementById("found-fields").replaceChildren(
    ...items.map(({ name, kind, runs, columns }) =>
      element(
        "li",
        {},
        columns.map((column, index) =>
          element("label", {}, element("input", { type: "checkbox", value: column, checked: shown.has(column), onchange: () => toggle(column) }), index ? ` ${column.slice(0, 3)}` : ` ${name}`),
        ),
        element("span", { class: "faint" }, kind === "run" ? "" : counted(runs, "run")),
      ),
    ),
    found > items.length ? element("li", { class: "faint" }, `and ${counted(found - items.length, "more field")}: type a part of the name`) : "",
  );
}, 150);

document.getElementById("columns").addEventListener("click", () => {
  if (chooser.open) return chooser.close();
  chooser.show();
  showColumns();
  search();
  find.focus();
});
document.getElementById("first-columns").addEventListener("click", () => write({ columns: "", pin: 0 }));
find.addEventListener("input", search);

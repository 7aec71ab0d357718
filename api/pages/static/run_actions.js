// What a person does to the selected runs: tags, a note, another name, the archive. One run after the other; those that
// are done are not done again when the rest is tried again.
import { ask, counted, post, runPath } from "./dom.js";
import { selectedIds } from "./selection.js";

const dialog = document.getElementById("act");
const form = document.getElementById("act-form");
const field = form?.elements.text;
const said = document.getElementById("act-said");
const button = document.getElementById("act-do");

const patch = (id, body) =>
  ask(runPath(id), {
    method: "PATCH",
    headers: { Accept: "application/json", "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

const words = (text, isMinus) =>
  text.split(/[\s,]+/).filter((word) => word && word.startsWith("-") === isMinus).map((word) => (isMinus ? word.slice(1) : word));

/** Add a note, unless an earlier try of the same one arrived although its answer was lost. */
async function addNote(id, text, isAgain) {
  const noted = isAgain ? (await ask(runPath(id, "/annotations"))).items : [];
  if (!noted.some((note) => note.text === text && Number(note.time_ns) / 1e6 > begun)) await post(runPath(id, "/annotations"), { text });
}

const ACTS = {
  tag: { title: "Tag", label: "Tags to add; -old removes one", apply: (id, text) => patch(id, { tag: words(text, false), untag: words(text, true) }) },
  note: { title: "Add a note to", label: "Note", apply: addNote },
  rename: { title: "Rename", label: "New name", apply: (id, text) => patch(id, { name: text }) },
  archive: { title: "Archive", label: null, apply: (id) => patch(id, { archived: true }) },
};

let act = null;
let left = [];
let begun = 0;
let tried = new Set();

/** Open the dialog of an action for the selected runs. */
function open(name) {
  act = ACTS[name];
  left = selectedIds();
  begun = Date.now() - 60_000; // Its clock and the server's may differ.
  tried = new Set();
  document.getElementById("act-title").textContent = `${act.title} ${counted(left.length, "run")}`;
  document.getElementById("act-label").textContent = act.label ?? "Archived runs are left out of the table, and kept.";
  field.hidden = !act.label;
  field.required = Boolean(act.label);
  field.value = "";
  said.textContent = "";
  button.disabled = false;
  dialog.showModal();
}

async function apply(done) {
  button.disabled = true;
  const failed = [];
  let why = "";
  const all = left.length;
  for (const [index, id] of left.entries()) {
    said.textContent = all > 1 ? `${index} of ${all}` : "";
    try {
      await act.apply(id, field.value.trim(), tried.has(id));
    } catch (error) {
      failed.push(id);
      why ||= error.message;
    }
    tried.add(id);
  }
  left = failed;
  button.disabled = false;
  if (failed.length) said.textContent = `${counted(failed.length, "run")} of ${all} failed: ${why} Apply tries these again.`;
  else dialog.close();
  done();
}

/** Have the buttons of the selection act; `done` is called after each action. */
export function takeActions(done) {
  if (!dialog) return;
  document.addEventListener("click", ({ target }) => target.dataset?.act && open(target.dataset.act));
  document.getElementById("act-close").addEventListener("click", () => dialog.close());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply(done);
  });
}

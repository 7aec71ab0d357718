// What people note about a run: the table of annotations, and the form that adds one.
import { element, post, runPath, shown, table } from "./dom.js";

const form = document.getElementById("annotate");
const { text, first, last, incident } = form.elements;
const status = document.getElementById("noted");

/** The annotations, the newest first. */
export function showAnnotations(items) {
  const rows = [...items].reverse().map((item) => [
    item.first_step === null ? "all" : item.last_step > item.first_step ? `${shown(item.first_step)} to ${shown(item.last_step)}` : shown(item.first_step),
    [item.text, item.name && `named ${item.name}`, ...item.tag.map((tag) => `+${tag}`), ...item.untag.map((tag) => `−${tag}`)].filter(Boolean).join(" · "),
    "incident" in item.attrs ? element("span", { class: "chip censored" }, shown(item.attrs.incident)) : "",
    item.author ?? (item.origin === "recorder" ? "training program" : "–"),
  ]);
  const none = element("p", { class: "faint" }, "No annotations yet.");
  document.getElementById("annotations").replaceChildren(rows.length ? table(["steps", "note", "incident", "by"], rows, [0, 1, 2, 3]) : none);
}

/** Offer the part of the run that the curves show as what the next note is about. */
export function offerSteps(from, to) {
  first.value = from === null ? "" : Math.max(0, Math.ceil(from));
  last.value = to === null ? "" : Math.max(0, Math.floor(to));
}

/** Have the form add annotations to a run; `done` is called after each. */
export function takeAnnotations(id, done) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const step = (field) => (field.value === "" ? null : Number(field.value));
    const note = { text: text.value, first_step: step(first), last_step: step(last), attrs: incident.checked ? { incident: text.value } : {} };
    try {
      await post(runPath(id, "/annotations"), note);
      form.reset();
      status.textContent = "";
      await done();
    } catch (error) {
      status.textContent = error.message;
    }
  });
}

/** Have the buttons of a live run ask its recorder for what they say; `done` is called after each. */
export function takeRequests(id, done) {
  // The page replaces the buttons as the run goes on, so it is the document that listens.
  document.addEventListener("click", async ({ target }) => {
    const { request } = target.dataset ?? {};
    if (!request || (request === "stop" && !window.confirm("Stop this run?"))) return;
    let answer = "asked; the run obeys within about a second of training";
    try {
      await post(runPath(id, "/requests"), { request });
      await done();
    } catch (error) {
      answer = error.message;
    }
    const status = document.getElementById("requested");
    if (status) status.textContent = answer;
  });
}

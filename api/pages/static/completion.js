// Completion of questions, fields and rules as one types: what is known of the text before the cursor, in a list below.
import { address, ask, element, gathered } from "./dom.js";

/** Between a key and the question to the server, in milliseconds. */
const PAUSE = 150;

/** Most entries of a list. */
const LISTED = 10;

/** What is being typed: a value of a field, or a name; null within quotes and after a blank at the start. */
function tokenOf(before, isQuestion) {
  if (!isQuestion) return { start: before.search(/[^,]*$/), text: before.match(/[^,]*$/)[0].trim(), field: null };
  const value = before.match(/(?:^|\s)-?([^\s:=<>~!"]+)[:=]([^\s"]*)$/);
  if (value) {
    const text = value[2].split(",").at(-1);
    return { start: before.length - text.length, text, field: value[1] };
  }
  const name = before.match(/(?:^|\s)-?([^\s:=<>~!"]*)$/);
  return name && { start: before.length - name[1].length, text: name[1], field: null };
}

const quoted = (text) => (/^[^\s,=<>"'][^\s,]*$/.test(text) ? text : `"${text.replace(/[\\"]/g, "\\$&")}"`);

/** The choices for what is being typed: text to insert, and what it is. */
async function choicesFor(token, isQuestion) {
  if (token.field) {
    const { items } = await ask(address("/api/v1/fields", { text: token.field, limit: LISTED }));
    const values = items.find((one) => one.name === token.field)?.values ?? [];
    return values.filter((text) => text.toLowerCase().startsWith(token.text.toLowerCase())).map((text) => ({ insert: `${quoted(text)} `, text, more: "" }));
  }
  if (!token.text) return [];
  const { items } = await ask(address("/api/v1/fields", { text: token.text, limit: LISTED }));
  return items.map(({ name, kind, type, runs }) => {
    const sign = !isQuestion ? "" : type === "text" || type === "texts" || type === "moment" ? ":" : "<";
    return { insert: name + sign, text: name, more: kind === "run" ? "" : `${kind}, ${runs} runs` };
  });
}

/** How questions are completed, and lists of fields. */
const QUESTIONS = { tokenOf: (before) => tokenOf(before, true), choicesFor: (token) => choicesFor(token, true) };
const FIELDS = { tokenOf: (before) => tokenOf(before, false), choicesFor: (token) => choicesFor(token, false) };

/**
 * Have a text field complete questions, lists of fields, or a language of its own; `done` is called after a choice.
 *
 * A language finds what is being typed before the cursor, null for nothing, and the choices for it. The list is below
 * the field, or with `isCaret` below the caret of an area whose letters have one width.
 */
export function complete(field, { isQuestion = true, language = isQuestion ? QUESTIONS : FIELDS, done = () => {}, isCaret = false } = {}) {
  const list = element("ul", { class: "completion", role: "listbox", id: `${field.id}-choices`, hidden: true });
  field.after(list);
  // An area of text has no role of another kind, and so nothing that is expanded.
  const role = isCaret ? {} : { role: "combobox", "aria-expanded": "false" };
  for (const [name, value] of Object.entries({ ...role, "aria-controls": list.id, "aria-autocomplete": "list" })) field.setAttribute(name, value);
  let choices = [];
  let at = -1;
  let token = null;

  function close() {
    choices = [];
    show();
  }

  function show() {
    list.hidden = !choices.length;
    if (isCaret) moveToCaret();
    else field.setAttribute("aria-expanded", String(!list.hidden));
    list.replaceChildren(
      ...choices.map(({ text, more }, index) =>
        element("li", { role: "option", id: `${list.id}-${index}`, "aria-selected": String(index === at), onpointerdown: (event) => choose(event, index) }, text, element("span", { class: "faint" }, more)),
      ),
    );
    if (at < 0 || list.hidden) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", `${list.id}-${at}`);
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  function moveToCaret() {
    const lines = field.value.slice(0, field.selectionStart).split("\n");
    const style = getComputedStyle(field);
    const letter = parseFloat(style.fontSize) * 0.6;
    list.style.top = `${Math.min(field.offsetHeight, parseFloat(style.paddingTop) + lines.length * parseFloat(style.lineHeight) - field.scrollTop + 4)}px`;
    list.style.left = `${Math.max(0, Math.min(field.offsetWidth - 260, lines.at(-1).length * letter - field.scrollLeft))}px`;
  }

  function choose(event, index) {
    event.preventDefault();
    const { insert } = choices[index];
    field.setRangeText(insert, token.start, field.selectionStart, "end");
    close();
    field.dispatchEvent(new Event("input", { bubbles: true }));
    done();
  }

  const readToken = () => language.tokenOf(field.value.slice(0, field.selectionStart));

  const lookUp = gathered(async () => {
    const asked = field.value;
    token = readToken();
    const found = token ? await language.choicesFor(token).catch(() => []) : [];
    // The reader may have typed on, or left.
    if (field.value !== asked || document.activeElement !== field) return;
    const isWhole = found.length === 1 && found[0].insert.trim() === token.text;
    const chosen = choices[at]?.insert;
    choices = isWhole ? [] : found.slice(0, LISTED);
    at = choices.findIndex(({ insert }) => insert === chosen);
    show();
  }, PAUSE);

  field.addEventListener("input", () => {
    // Until the answer comes, only those choices stay that still fit.
    token = readToken();
    [choices, at] = [token ? choices.filter(({ text }) => text.toLowerCase().includes(token.text.toLowerCase())) : [], -1];
    show();
    lookUp();
  });
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : choices.length + (at < 0 ? 0 : -1))) % choices.length;
      if (event.key === "ArrowUp" && at < 0) at = choices.length - 1;
      show();
    } else if (event.key === "Tab" || (event.key === "Enter" && at >= 0)) choose(event, Math.max(0, at));
    else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  });
}

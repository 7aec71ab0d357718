// Saving a rule as a file of the server's folder, and the line that arms it.
import { ask, element } from "./dom.js";
import { params as paramsNow, ruleText } from "./rule_editor.js";

const by = (id) => document.getElementById(id);

/** A file name of the words of a rule, or of the file that it was. */
function nameOf(text, known) {
  if (known) return `${known}_of_mine`;
  const words = text.replace(/^[\s\S]*?- name:\s*/, "").split(/\sif\s|\n/)[0].match(/[A-Za-z][A-Za-z0-9]*/g) ?? ["rule"];
  return words.join("_").slice(0, 40).toLowerCase();
}

/** Hide what a rule that has changed since does not say. */
export function closeSaving() {
  by("saved-rule").replaceChildren();
  by("replace").hidden = true;
}

async function save(isReplaced) {
  const name = by("name").value.trim();
  try {
    const saved = await ask(`/api/v1/policies/${encodeURIComponent(name)}`, {
      method: "PUT",
      headers: { Accept: "application/json", "Content-Type": "application/json" },
      body: JSON.stringify({ text: ruleText(), params: paramsNow(), replace: isReplaced }),
    });
    by("replace").hidden = true;
    showLine(saved);
  } catch (error) {
    by("replace").hidden = error.status !== 409 || !error.message.includes("replace");
    by("saved-rule").replaceChildren(element("p", { class: "notice wrong" }, error.message));
  }
}

/** The line that arms the saved rule in a loop, and a button that copies it. */
function showLine({ name, path }) {
  const line = `Recorder("runs", rules=${JSON.stringify(path)})`;
  const copy = element("button", { type: "button", id: "copy" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(line).then(() => (copy.textContent = "Copied"), () => getSelection().selectAllChildren(by("line")));
  });
  by("saved-rule").replaceChildren(element("p", {}, `Saved as ${name}. To arm it in the next run, give this to its loop:`), element("p", { class: "tools" }, element("code", { id: "line" }, line), copy));
}

/** Take the form that saves. */
export function takeSaving({ canSave, proposedName }) {
  by("save").addEventListener("click", () => {
    if (!canSave) {
      by("saved-rule").replaceChildren(element("p", { class: "notice" }, "This server has no folder to save rules in. Start it with 'steptape serve --rules-folder FOLDER'."));
      return;
    }
    by("saving").hidden = false;
    if (!by("name").value) by("name").value = nameOf(ruleText(), proposedName());
    by("name").focus();
    by("name").select();
  });
  by("saving").addEventListener("submit", (event) => {
    event.preventDefault();
    save(false);
  });
  by("replace").addEventListener("click", () => save(true));
}

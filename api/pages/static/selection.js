// The selected runs of the table. Their ids are in the address, sorted, each without what it shares with the one before.
import { read, write } from "./state.js";

/** Separates ids; no id has it. */
const SEPARATOR = "*";

/** The longest shared beginning: a digit of base 36 says how long it is. */
const LONGEST = 35;

/** Ids as the address has them; the server reads and writes the same form. */
export function packed(ids) {
  let before = "";
  const parts = [...new Set(ids)].sort().map((id) => {
    let shared = 0;
    while (shared < LONGEST && shared < before.length && before[shared] === id[shared]) shared += 1;
    const part = before ? shared.toString(36) + id.slice(shared) : id;
    before = id;
    return part;
  });
  return parts.join(SEPARATOR);
}

export function unpacked(text) {
  const ids = [];
  for (const part of text ? text.split(SEPARATOR) : []) {
    ids.push(ids.length ? ids.at(-1).slice(0, parseInt(part[0], 36)) + part.slice(1) : part);
  }
  return ids;
}

export const selectedIds = () => unpacked(read().selected);

/** Select runs, or no longer; false if an address cannot hold so many. */
export function select(ids, isWanted, most) {
  const chosen = new Set(selectedIds());
  for (const id of ids) chosen[isWanted ? "add" : "delete"](id);
  if (chosen.size > most) return false;
  write({ selected: packed(chosen) });
  return true;
}

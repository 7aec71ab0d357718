"""Compares steptape with the recorded trainer controller: same firings, a departure in TRAC.md, or a finding.

``python -m compat.comparison`` prints the comparison and exits 1 on any finding.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from compat.corpus import Case, read_cases, read_recorded
from compat.ours import answer

AGREES = "agrees"
DEPARTS = "departs"
DISAGREES = "disagrees"


def verdict(case: Case, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, str]:
    """Return whether a case agrees, departs as it declares or disagrees, and the reason."""
    if theirs.get("digest") != case.digest:
        return DISAGREES, "the recording is of another policy or stream: run 'make compat'"
    difference = difference_between(theirs, ours)
    if not case.departure:
        return (DISAGREES, difference) if difference else (AGREES, "")
    if not difference:
        return DISAGREES, f"both do the same, so there is no departure: {case.departure}"
    surprise = difference_from_promise(case, ours) or difference_before_failure(theirs, ours)
    return (DISAGREES, surprise) if surprise else (DEPARTS, difference)


def difference_between(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the first difference in behaviour, or an empty text. Two refusals to load count as equal."""
    failed, refused = theirs.get("failed"), ours.get("refused")
    if failed and failed["at"] == "load" and refused:
        return ""
    if failed:
        return f"the trainer controller fails at {failed['at']} ({failed['error']}), steptape: {refused or ours}"
    if refused:
        return f"steptape refuses it: {refused}"
    if ours["errors_at"]:
        return f"a rule fails in steptape alone, at {ours['errors_at']}"
    for index in sorted({*theirs["events"], *ours["events"]}, key=int):
        one, other = theirs["events"].get(index), ours["events"].get(index)
        if one != other:
            return f"event {index}: the trainer controller {one}, steptape {other}"
    return ""


def difference_from_promise(case: Case, ours: Mapping[str, Any]) -> str:
    """Return how steptape differs from the behaviour that the case promises for its departure; empty if it does not."""
    promised = case.ours
    if "refused" in promised or "refused" in ours:
        words = promised.get("refused")
        return "" if words and words in ours.get("refused", "") else f"refused: promised {words!r}, got {ours}"
    events = ours["events"]
    got = {
        "fires_at": [int(index) for index, facts in events.items() if facts.get("fired")],
        "errors_at": ours["errors_at"],
        "messages": [text for facts in events.values() for _, text in facts.get("messages", ())],
    }
    wanted = {"errors_at": [], "messages": [], **promised}
    return "" if got == wanted else f"promised {wanted}, got {got}"


def difference_before_failure(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return how firings differ before the event that crashed the trainer controller; empty if they do not."""
    failed = theirs.get("failed")
    if not failed or failed["at"] == "load" or "refused" in ours:
        return ""
    one, other = (
        {index: facts for index, facts in side["events"].items() if int(index) < failed["at"]}
        for side in (theirs, ours)
    )
    return "" if one == other else f"before event {failed['at']}: {one} and {other}"


def main() -> int:
    """Print the differences and the number of agreeing cases; return 1 if any case disagrees."""
    recorded = read_recorded()
    counts: Counter[str] = Counter()
    for case in read_cases():
        kind, why = verdict(case, recorded["cases"].get(case.name, {}), answer(case))
        counts[kind] += 1
        if kind == DEPARTS:
            print(f"departs    {case.name}\n           {case.departure}")
        elif kind == DISAGREES:
            print(f"DISAGREES  {case.name}\n           {why}")
    versions = ", ".join(f"{name} {version}" for name, version in recorded["versions"].items())
    print(
        f"{counts.total()} cases against {versions}: {counts[AGREES]} agree, {counts[DEPARTS]} depart as listed, "
        f"{counts[DISAGREES]} disagree"
    )
    return 1 if counts[DISAGREES] else 0


if __name__ == "__main__":
    sys.exit(main())

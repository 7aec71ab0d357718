"""TrAC's rule files mean here what they mean there: a recorded run of the real trainer controller is the judge.

``make compat`` records it anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compat.comparison import AGREES, DEPARTS, DISAGREES, verdict
from compat.corpus import Case, read_cases, read_recorded
from compat.ours import answer

CASES = read_cases()
RECORDED = read_recorded()["cases"]
PAGE = (Path(__file__).parents[1] / "LANGUAGE.md").read_text(encoding="utf-8")

#: Departures that no policy over one stream can show, and where they are shown.
SHOWN_ELSEWHERE = {
    "a resumed run goes on where it was",  # test_replay_resuming.py
    "a stop at `on_init_end` holds",  # test_recorder_operations.py
    "sums run left to right on every version of Python",  # test_rules_reductions.py
    "sets are read in sorted order",  # test_rules_reductions.py
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_fires_as_the_trainer_controller_does_or_departs_as_the_page_says(case: Case) -> None:
    """Same operations, messages, flags and log levels at the same events."""
    kind, why = verdict(case, RECORDED.get(case.name, {}), answer(case))

    assert kind == (DEPARTS if case.departure else AGREES), why


def test_every_departure_is_on_the_page_and_every_one_on_the_page_is_shown() -> None:
    """By the words in bold."""
    section = PAGE.split("# Departures from TrAC\n", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^- \*\*(.*?)\.?\*\*", section, re.MULTILINE | re.DOTALL)
    shown = {case.departure for case in CASES if case.departure}

    assert {" ".join(name.split()) for name in listed} == shown | SHOWN_ELSEWHERE
    assert not shown & SHOWN_ELSEWHERE


def test_cases_have_names_of_their_own_and_nothing_is_recorded_beside_them() -> None:
    """Of two cases with one name, one would be judged by the other's recording."""
    names = [case.name for case in CASES]

    assert len(set(names)) == len(names)
    assert set(RECORDED) == set(names)


def test_a_case_that_loads_in_neither_says_so() -> None:
    """Where a policy of the corpus is broken by mistake, both engines refuse it and seem to agree."""
    refused = {case.name for case in CASES if not case.departure and RECORDED[case.name].get("failed")}

    assert refused == {case.name for case in CASES if re.search(r"do(es)? not load$", case.name)}


def test_a_firing_too_much_or_too_few_is_found() -> None:
    """The comparison itself can tell."""
    case = next(case for case in CASES if case.name == "patience: threshold 1")
    theirs, ours = RECORDED[case.name], answer(case)
    fewer = dict(list(ours["events"].items())[1:])

    assert verdict(case, theirs, ours)[0] == AGREES
    assert verdict(case, theirs, {**ours, "events": fewer})[0] == DISAGREES
    assert verdict(case, {**theirs, "events": fewer}, ours)[0] == DISAGREES
    assert verdict(case, {**theirs, "digest": "another"}, ours)[0] == DISAGREES

"""TrAC's rule files mean the same in steptape as in the real trainer controller, according to its recorded answers.

``make compat`` records the answers anew.
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
PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "TRAC.md").read_text(encoding="utf-8")

#: Departures that no policy over one stream can show, with the test that shows each.
SHOWN_ELSEWHERE = {
    "a resumed run continues where it was",  # test_replay_resuming.py
    "a stop at `on_init_end` holds",  # test_recorder_operations.py
    "sums run left to right on every version of Python",  # test_rules_reductions.py
    "sets are read in sorted order",  # test_rules_reductions.py
    "`on_train_end` comes when the run ends",  # frameworks/test_transformers_trac.py
    "an evaluation before the training comes after `on_train_begin`",  # frameworks/test_transformers_trac.py
    "an epoch that a checkpoint has cut in two begins once",  # frameworks/test_transformers.py
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_fires_as_the_trainer_controller_does_or_departs_as_the_page_says(case: Case) -> None:
    """Operations, messages, flags and log levels are the same at the same events."""
    kind, why = verdict(case, RECORDED.get(case.name, {}), answer(case))

    assert kind == (DEPARTS if case.departure else AGREES), why


def test_every_departure_is_on_the_page_and_every_one_on_the_page_is_shown() -> None:
    """Departures are matched by their words in bold."""
    listed = re.findall(r"^- \*\*(.*?)\.?\*\*", PAGE, re.MULTILINE | re.DOTALL)
    shown = {case.departure for case in CASES if case.departure}

    assert {" ".join(name.split()) for name in listed} == shown | SHOWN_ELSEWHERE
    assert not shown & SHOWN_ELSEWHERE


def test_cases_have_names_of_their_own_and_nothing_is_recorded_beside_them() -> None:
    """With a shared name, one case would be compared with the other's recording."""
    names = [case.name for case in CASES]

    assert len(set(names)) == len(names)
    assert set(RECORDED) == set(names)


def test_a_case_that_loads_in_neither_says_so() -> None:
    """If a policy of the corpus is broken by mistake, both engines refuse it and seem to agree."""
    refused = {case.name for case in CASES if not case.departure and RECORDED[case.name].get("failed")}

    assert refused == {case.name for case in CASES if re.search(r"do(es)? not load$", case.name)}


def test_a_firing_too_much_or_too_few_is_found() -> None:
    """The comparison itself detects differences."""
    case = next(case for case in CASES if case.name == "patience: threshold 1")
    theirs, ours = RECORDED[case.name], answer(case)
    fewer = dict(list(ours["events"].items())[1:])

    assert verdict(case, theirs, ours)[0] == AGREES
    assert verdict(case, theirs, {**ours, "events": fewer})[0] == DISAGREES
    assert verdict(case, {**theirs, "events": fewer}, ours)[0] == DISAGREES
    assert verdict(case, {**theirs, "digest": "another"}, ours)[0] == DISAGREES

"""``check`` warns of each file in ``data/dead-files/files.txt``: files that load, and can never act as written."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.checks.deadlocks import deadlocks
from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.checks.findings import findings_of
from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.store.events import Event

FILES = (Path(__file__).parent / "data" / "dead-files" / "files.txt").read_text(encoding="utf-8")
CONTROLLER = {"name": "c", "triggers": "[on_step_end]", "rule": "loss > 2", "operations": "[]"}


class DeadFile(NamedTuple):
    """A file, and the warning of it."""

    kind: str
    words: str
    text: str
    line: int
    column: int


def dead_files() -> list[DeadFile]:
    """Return the files of the table."""
    return [_file(*block.partition("\n")[::2]) for block in re.split(r"^== ", FILES, flags=re.MULTILINE)[1:]]


def _file(heading: str, block: str) -> DeadFile:
    text = block.strip("\n") + "\n"
    if "controllers:" not in text:
        own, _, top = text.partition("--\n")
        given = {line.split(":")[0] for line in own.splitlines()}
        lines = [*own.splitlines(), *(f"{key}: {value}" for key, value in CONTROLLER.items() if key not in given)]
        text = f"{top}controllers:\n  -\n" + "".join(f"    {line}\n" for line in lines)
    before = text.partition("¶")[0]
    kind, _, words = heading.partition(": ")
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    return DeadFile(kind, words, text.replace("¶", ""), *place)


@pytest.mark.parametrize("file", dead_files(), ids=lambda file: file.words[:60])
def test_a_file_that_cannot_act_as_written_is_warned_of(file: DeadFile) -> None:
    """With the kind, at the place, and in these words."""
    found = findings_of(parse_policy(file.text, source="p.yaml"))
    said = [(str(each.code), each.line, each.column) for each in found if file.words in each.message]

    assert said == [(file.kind, file.line, file.column)], "\n".join(map(str, found))


def test_names_of_an_extended_file_may_be_left_without_a_use() -> None:
    """Its rules that used them are left out."""
    policy = parse_policy("extends: surogate\nwithout: [stop_convergence]\n", source="p.yaml")

    assert [each for each in findings_of(policy) if each.code is FindingCode.UNUSED] == []


SENTENCES = [
    ("stop if loss > 4 and ¶loss < 2", FindingCode.DEAD),
    ("stop if loss > 9\nsave if lr > 5 and ¶lr < 3", FindingCode.DEAD),
    ("save if loss > 3 once ¶at most every 50 steps", FindingCode.TIMING),
    ("stop if step == 100 and loss > 3 for ¶5 steps after 50 steps", FindingCode.TIMING),
    ('warn "loss is {¶los:.1f}" if loss > 3', FindingCode.NEAR_FACT),
    ("stop and ¶rollback.to(last) if not isfinite(loss)", FindingCode.CONTRADICTION),
    ("stop if loss > 3 and ¶loss < 1 after 10%", FindingCode.DEAD),
    ("save if ¶eval_los > 3 and eval_loss < 9", FindingCode.NEAR_FACT),
]


@pytest.mark.parametrize(("marked", "kind"), SENTENCES)
def test_a_warning_about_a_sentence_is_at_its_place_in_the_sentence(marked: str, kind: FindingCode) -> None:
    """Not in the full form that the sentence stands for."""
    text = marked.replace("¶", "")
    before = marked.partition("¶")[0].splitlines()

    found = {(each.line, each.column) for each in findings_of(load_policy(text)) if each.code is kind}

    assert found == {(len(before), len(before[-1]) + 1)}


QUESTIONS = ["times_fired", "steps_since", "streak"]


@st.composite
def asking(draw: st.DrawFn) -> str:
    """Draw a rule that asks about controllers and states, or reads a series."""
    form = draw(st.integers(0, 6))
    if form == 0:
        part = draw(st.sampled_from(["x > 2", "x < 1", "step > 5", "len(x) >= 3"]))
    elif form < 4:
        question, name = draw(st.sampled_from(QUESTIONS)), draw(st.sampled_from("abc"))
        part = f'{question}("{name}"){draw(st.sampled_from([" > 0", " < 3"]))}'
    elif form == 4:
        part = f'{draw(st.sampled_from("st"))} {draw(st.sampled_from(["==", "!="]))} "{draw(st.sampled_from("uv"))}"'
    else:
        part = draw(st.sampled_from(['age("s") > 2', 'age("t") == 0', 'previous("s") == "u"']))
    return f"not {part}" if draw(st.booleans()) else part


RULES = st.recursive(
    asking(), lambda rule: st.tuples(rule, st.sampled_from(["and", "or"]), rule).map(lambda each: f"({' '.join(each)})")
)


@examples(300)
@given(
    rules=st.lists(RULES, min_size=3, max_size=3),
    classes=st.lists(RULES, min_size=4, max_size=4),
    seed=st.integers(0, 10**9),
)
def test_a_rule_that_is_said_to_wait_for_itself_never_fires(rules: list[str], classes: list[str], seed: int) -> None:
    """In no random run, whatever the others do."""
    one, two, three, four = (json.dumps(each) for each in classes)
    states = f"states: {{s: [{{u: {one}}}, {{v: {two}}}], t: [{{u: {three}}}, {{v: {four}}}]}}\n"
    entries = [
        f"  - {{name: {name}, triggers: [on_step_end], rule: {json.dumps(rule)}, operations: []}}\n"
        for name, rule in zip("abc", rules, strict=True)
    ]
    policy = parse_policy(f"{states}controllers:\n{''.join(entries)}", source="p.yaml")
    stuck = {each.owner for each in deadlocks(policy)}
    made = random.Random(seed)

    for _ in range(4):
        engine = Engine(policy)
        for step in range(1, 25):
            metrics = {"x": made.choice([0.0, 1.5, 3.0, math.nan])} if made.random() < 0.9 else {}
            for outcome in engine.observe(Event("step_end", step, metrics=metrics)):
                fired = isinstance(outcome, Decision)
                assert not (fired and f"controller '{outcome.controller}'" in stuck)

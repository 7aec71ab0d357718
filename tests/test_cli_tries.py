"""Choices of a rule on the same runs are counted, since a promise holds for one that is made before looking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call

from steptape.cli.tries import TRIES, counted_try
from steptape.rules.certificate import read_certificate
from steptape.store.events import Event

POLICY = """
params: {patience: 2}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: not (eval_loss < lag(trough(eval_loss), 1))
    patience: {patience_threshold: patience}
    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, which is not there yet."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_each_question_counts_once_for_all_runs_that_it_shares(cache: Path) -> None:
    """Another question to any of the runs is another try; other runs have a count of their own."""
    assert counted_try(["a"], ["1", "2"]) == 1
    assert counted_try(["a"], ["2", "1"]) == 1
    assert counted_try(["b"], ["2", "3"]) == 2
    assert counted_try(["a"], ["1", "2"]) == 2
    assert counted_try(["c"], ["9"]) == 1
    assert counted_try(["d"], ["1", "2"]) == 3
    lines = [json.loads(line) for line in (cache / TRIES).read_text().splitlines()]
    assert ["runs" in line for line in lines] == [True, True, True, False]


def test_a_line_that_a_crash_cut_off_is_no_try(cache: Path) -> None:
    """The next one begins on a line of its own."""
    counted_try(["a"], ["1"])
    with open(cache / TRIES, "a") as file:
        file.write('{"question": "4')

    assert counted_try(["b"], ["1"]) == 2
    assert counted_try(["c"], ["1"]) == 3


def test_a_try_that_cannot_be_counted_is_said_and_fails_nothing(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in place of the file cannot be written."""
    (cache / TRIES).mkdir(parents=True)

    assert counted_try(["a"], ["1"]) is None
    assert "note: this try is not counted: " in capsys.readouterr().err


@pytest.mark.usefixtures("cache")
def test_certificate_report_and_recommendation_state_the_number_of_tries(
    store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """Other limits, other params and another command are further tries; the same command again is none."""
    for number in range(30):
        curve = [2 - i / 5 if i < 5 else 1.2 + 0.0005 * i for i in range(20)]
        events = [
            Event("evaluate", step=step, metrics={"eval_loss": value * (1 + number * 1e-5)})
            for step, value in enumerate(curve, start=1)
        ]
        folder = store_record(events, run_id=f"run-{number}", name=f"run {number}", group=f"g{number}")
    (tmp_path / "policy.yaml").write_text(POLICY)
    certify = ["certify", tmp_path / "policy.yaml", "--store", folder.parent, "--set"]
    first = call(*certify, "patience=1..3")
    again = call(*certify, "patience=1..3")
    second = call(*certify, "patience=1..4", "-o", tmp_path / "c.json")
    third = call("recommend", "--store", folder.parent, "--family", "run", "--json")

    assert "on these runs: the promise" not in first.stdout + again.stdout
    assert "This is try 2 on these runs: the promise holds for one choice that is made before looking." in second.stdout
    assert read_certificate(tmp_path / "c.json").tests.tries == 2
    assert json.loads(third.stdout)["tries"] == 3
    assert json.loads(third.stdout)["certificate"]["tests"]["tries"] == 3

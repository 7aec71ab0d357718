"""``steptape check`` and ``steptape test`` print exactly the text and JSON of the golden files.

A golden file holds the exit status, the output of the command (without digests), and stderr. A changed golden file
means changed messages: read them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import call as steptape

from steptape import Recorder
from steptape.rules.policy_file.policy import load_policy, load_variants, parse_policy, shipped_policies

DATA = Path(__file__).parent / "data"


def call(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return steptape(*arguments, folder=folder)


def told(result: subprocess.CompletedProcess[str]) -> str:
    """Return the content for a golden file."""
    stdout = re.sub(r"digest [0-9a-f]{12}$", "digest DIGEST", result.stdout, flags=re.MULTILINE)
    parts = [f"exit status {result.returncode}\n", stdout]
    return "".join([*parts, "--- stderr\n", result.stderr] if result.stderr else parts)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 30 steps with falling loss and three evaluations."""
    with Recorder(tmp_path_factory.mktemp("runs"), name="thirty") as rec:
        for step in range(1, 31):
            rec.step(loss=2.0 - step / 30)
            if step % 10 == 0:
                rec.evaluate(eval_loss=2.0 - step / 30)
    return rec.folder


@pytest.mark.parametrize(
    ("golden", "arguments"),
    [
        ("golden-check/errors.txt", ["check", "errors.yaml"]),
        ("golden-check/warnings.txt", ["check", "warnings.yaml"]),
        ("golden-check/ignored.txt", ["check", "warnings.yaml", "--ignore", "nan-guard", "--ignore", "dead"]),
        ("golden-test/failing.txt", ["test", "failing.test.yaml"]),
        ("golden-test/broken.txt", ["test", "broken.test.yaml"]),
    ],
)
def test_the_messages_are_those_of_the_golden_file(golden: str, arguments: list[str]) -> None:
    """They match to the last blank."""
    path = DATA / golden

    assert told(call(path.parent, *arguments)) == path.read_text(encoding="utf-8")


def test_the_messages_about_a_policy_against_runs_are_those_of_the_golden_file(run: Path) -> None:
    """The runs are given by folder or by store; the run's id is replaced."""
    path = DATA / "golden-check" / "against.txt"
    by_folder = call(path.parent, "check", "against.yaml", run)

    assert told(by_folder).replace(run.name, "RUN") == path.read_text(encoding="utf-8")
    assert call(path.parent, "check", "against.yaml", "--store", run.parent).stdout == by_folder.stdout


def test_further_runs_may_follow_the_first_as_a_shell_writes_them(run: Path, tmp_path: Path) -> None:
    """``runs/*`` expands to several arguments; a run's folder is never taken for a policy."""
    runs = [shutil.copytree(run, tmp_path / name) for name in ("first", "second", "third")]
    result = call(DATA, "check", "loss_spike", *runs, run, run)

    assert result.returncode == 1
    assert "any of the 4 runs given" in result.stdout
    assert "4 warnings against 4 runs" in result.stdout


def test_every_message_can_be_jumped_to(run: Path) -> None:
    """``path:line:column: message`` begins a line; all other lines are indented or a summary."""
    for arguments in (["check", "warnings.yaml"], ["check", "against.yaml", run]):
        printed = call(DATA / "golden-check", *arguments).stdout.splitlines()
        heads = [line for line in printed if not line.startswith("  ")]

        assert all(re.fullmatch(r"\S+\.yaml:\d+:\d+: warning: .+ \[[a-z-]+\]", line) for line in heads[:-1])
        assert re.fullmatch(r"\S+\.yaml: \d+ warnings.*", heads[-1])


def parsed(text: str) -> list[Any]:
    """Parse JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_check_speaks_json() -> None:
    """Each file is one object, even if it does not load."""
    result = call(DATA / "golden-check", "check", "errors.yaml", "warnings.yaml", "loss_spike", "--json")
    broken, doubtful, fine = parsed(result.stdout)

    assert (result.returncode, result.stderr) == (1, "")
    assert (broken["ok"], broken["digest"], broken["warnings"]) == (False, None, [])
    assert broken["problems"][0] == {
        "line": 1,
        "column": 1,
        "message": "unknown key; got 'controller-metrics'. Did you mean 'controller_metrics'?",
    }
    assert (doubtful["ok"], doubtful["problems"]) == (True, [])
    assert {warning["code"] for warning in doubtful["warnings"]} == {
        "nan-guard",
        "dead",
        "timing",
        "contradiction",
    }
    assert fine["warnings"] == fine["problems"] == []


def test_test_speaks_json() -> None:
    """Each test is one object, with expected and actual decisions."""
    result = call(DATA / "golden-test", "test", "failing.test.yaml", "--json")
    tests = {entry["test"]: entry for entry in parsed(result.stdout)}

    assert (result.returncode, result.stderr) == (1, "")
    assert [entry["ok"] for entry in tests.values()] == [True, False, False, False, False, False]
    wrong = tests["the wrong step, other operations, and one too many"]
    assert [(entry["step"], entry["line"]) for entry in wrong["missing"]] == [(10, 13)]
    assert [entry["values"]["loss"] for entry in wrong["unexpected"]] == [20.0]
    assert wrong["different"][0]["decided"]["operations"] == ["hfcontrols.should_save"]
    assert tests["it was to be silent"]["unexpected"][0]["values"] == {"isfinite(loss)": False, "loss": "NaN"}


def test_a_shipped_policy_s_tests_run_by_its_name() -> None:
    """All of them pass."""
    result = call(DATA, "test", "loss_spike", "overfitting")

    assert (result.returncode, result.stdout.count("tests pass")) == (0, 2)


def test_a_sentence_is_checked_in_place_of_a_file() -> None:
    """A fault points into it."""
    wrong = call(DATA, "check", "save if loss > 3; stop if men(loss, 3) > 3")

    assert wrong.returncode == 1
    assert "    2 | stop if men(loss, 3) > 3\n      |         ^" in wrong.stdout


def test_shipped_rule_files_are_listed_and_shown() -> None:
    """Each has a summary, what it reads and its params; one is shown as it is."""
    listed = [json.loads(line) for line in call(DATA, "rules", "--json").stdout.splitlines()]
    shown = call(DATA, "rules", "--show", "nan_guard")

    assert [each["name"] for each in listed] == list(shipped_policies())
    assert all(each["summary"] and each["reads"] for each in listed)
    assert listed[[*shipped_policies()].index("plateau")]["params"]["patience"] == 10
    assert shown.stdout == shipped_policies()["nan_guard"].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "sentence", ["stop if eval_loss has not improved for 5 evaluations; save if loss < 1", "stop if loss > {3..10}"]
)
def test_the_full_form_of_a_sentence_is_a_rule_file_of_its_digest(sentence: str) -> None:
    """It is printed whole; of values to try, it has the first."""
    printed = call(DATA, "rules", "--expand", sentence)

    assert printed.returncode == 0
    assert parse_policy(printed.stdout).digest == load_variants(sentence)[0].digest


def test_the_full_form_of_a_rule_file_holds_what_it_extends(tmp_path: Path) -> None:
    """With the digest of the file."""
    (tmp_path / "mine.yaml").write_text("extends: nan_guard\nrename: {train/loss: loss}\n")
    printed = call(DATA, "rules", "--expand", tmp_path / "mine.yaml")

    assert "extends" not in printed.stdout
    assert parse_policy(printed.stdout).digest == load_policy(tmp_path / "mine.yaml").digest


def test_a_sweep_of_values_in_braces_is_that_of_the_full_form(run: Path, tmp_path: Path) -> None:
    """The variants have the same params and results."""
    sentence = "stop and save if eval_loss has not improved by {0.1, 0.5} for {1..2} evaluations"
    (tmp_path / "full.yaml").write_text(call(DATA, "rules", "--expand", sentence).stdout)
    by_sentence = call(DATA, "sweep", sentence, run, "--json")
    settings = ["--set", "min_gain=0.1,0.5", "--set", "for_evaluations=1,2"]
    by_file = call(DATA, "sweep", tmp_path / "full.yaml", run, *settings, "--json")

    variants = [json.loads(line) for line in by_sentence.stdout.splitlines()]
    assert len(variants) == 4
    assert by_sentence.stdout == by_file.stdout


def test_a_sweep_of_a_sentence_without_values_asks_for_them(run: Path) -> None:
    """The message shows how to write them."""
    result = call(DATA, "sweep", "stop if loss > 3", run)

    assert result.returncode == 2
    assert "in the sentence, such as {1, 2, 3} or {1..20}" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules", "--show", "nan"], "steptape ships no rules of that name"),
        (
            ["rules", "--expand", "loss > 3"],
            "no sentence, which has the word 'if', and no file. Write 'stop if elapsed_s > ",
        ),
        (["test", "nowhere.yaml"], "error: nowhere.yaml: no such file, and steptape ships no rules of that name"),
        (["check", "nowhere.yaml"], "no such file"),
        (
            ["check", "stop after 10 hours"],
            "no sentence, which has the word 'if', and no file. Write 'stop if elapsed_s > ",
        ),
        (["check", "--ignore", "everything", "loss_spike"], "everything"),
    ],
)
def test_what_cannot_be_opened_is_exit_status_2(arguments: list[str], message: str) -> None:
    """The error is on stderr."""
    result = call(DATA, *arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr

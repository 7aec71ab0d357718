"""The options of ``steptape backtest`` control what it writes and prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call as steptape

from steptape.store.events import Event

POLICY = """
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture
def backtest(store_path: Path, store_record: Callable[..., Path], tmp_path: Path) -> Callable[..., str]:
    """Run the command over a store of two runs; one is stopped at step 5 of 10."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    for number, spike in enumerate((5, 99)):
        events = []
        for step in range(1, 11):
            at: dict[str, Any] = {"step": step, "elapsed_ns": step * 3600 * 10**9}
            events.append(Event("step_end", metrics={"loss": 3.0 if step == spike else 1.0}, **at))
            events.append(Event("evaluate", metrics={"eval_loss": 2.0 - step / 10}, **at))
        store_record(events, run_id=f"run-{number}")

    def call(*arguments: object, status: int = 0, policy: str = str(tmp_path / "policy.yaml")) -> str:
        result = steptape("backtest", policy, "--store", store_path, *arguments)
        assert result.returncode == status, result.stderr
        return result.stdout + result.stderr if status else result.stdout

    return call


def test_a_store_without_runs_has_nothing_to_judge_a_policy_on(tmp_path: Path) -> None:
    """The command says so; with ``--json`` it prints an empty report."""
    command = ("backtest", "loss_spike", "--store", tmp_path)
    said = steptape(*command)
    document = steptape(*command, "--json")

    assert (said.returncode, said.stdout) == (0, f"no runs in {tmp_path}, so nothing to replay the rule file over\n")
    assert (document.returncode, json.loads(document.stdout)["runs"]) == (0, [])


def test_a_notice_counts_as_a_message_that_leaves_the_training_as_it_is(backtest: Callable[..., str]) -> None:
    """Its decision is exact, and the run keeps all its steps."""
    (decision,) = json.loads(backtest("--json", policy='notify "high" if loss > 2'))["runs"][0]["decisions"]

    assert (decision["effect"], decision["message"], decision["validity"]) == ("sends a message", "high", "exact")


def test_rules_that_never_fired_may_read_what_was_never_recorded(
    backtest: Callable[..., str], store_path: Path, tmp_path: Path
) -> None:
    """The output then names the checking command, but not after a reason or a firing, and not with ``--json``."""
    silent, typo = tmp_path / "silent.yaml", tmp_path / "typo.yaml"
    silent.write_text(POLICY.replace("loss >", "loss > 1e9 +"))
    typo.write_text(POLICY.replace("loss >", "los >"))
    hint = f"No rule fired: 'steptape check {silent} --store {store_path}' says whether"
    named = backtest(policy=str(typo))

    assert hint in backtest(policy=str(silent))
    assert "could fire in none of 2 runs: no 'los'" in named
    assert "No rule fired" not in named
    assert "No rule fired" not in backtest()
    assert "No rule fired" not in backtest("--json", policy=str(silent))


def test_html_is_written_beside_what_is_printed(backtest: Callable[..., str], tmp_path: Path) -> None:
    """The page has every baseline and the coverage without further options."""
    printed = backtest("--html", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")

    assert page.startswith("<!doctype html>")
    assert "Lightning EarlyStopping" in page
    assert "What these runs test" in page
    assert "The rules would have stopped 1 of 2 runs." in printed
    assert printed.endswith(f"The HTML report is in {tmp_path / 'report.html'}.\n")


def test_json_has_the_comparison_the_cost_and_the_detection(backtest: Callable[..., str], tmp_path: Path) -> None:
    """The options request them."""
    (tmp_path / "labels.csv").write_text("run,first_step,last_step\nrun-0,4,6\nrun-1,,\n")
    options = ("--baseline", "never", "--cost-per-hour", "2", "--delay", "1", "--labels", tmp_path / "labels.csv")

    report = json.loads(backtest("--json", "--processes", "2", *options))

    assert [row["name"] for row in report["comparison"]] == ["policy", "never"]
    assert report["aggregate"]["cost_saved"] == 4 * 2
    assert (report["detection"]["found"], report["detection"]["runs"]) == (1, 2)
    assert report["runs"][0]["predicted"]["steps"] == 6


@pytest.mark.parametrize(("handling", "checkpoints"), [("keep", 3), ("replace", 1)])
def test_saves_says_what_becomes_of_the_loop_s_own_checkpoints(
    handling: str, checkpoints: int, store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """Backtest, sweep and diff take it; text, JSON and page have it."""
    events = [Event("step_end", step=1, metrics={"loss": 1.0}), Event("save", step=1)]
    events += [
        Event("step_end", step=2, metrics={"loss": 9.0}),
        Event("step_end", step=3, metrics={"loss": 1.0}),
        Event("save", step=3),
    ]
    store = store_record(events, sealed=True).parent
    text = "{name: a, triggers: [on_step_end], rule: loss > high, operations: [hfcontrols.should_save]}"
    (tmp_path / "saving.yaml").write_text(f"params: {{high: 2}}\ncontrollers: [{text}]\n")
    asked = (tmp_path / "saving.yaml", "--store", store, "--saves", handling)

    def cli(*arguments: object, status: int = 0) -> str:
        result = steptape(*arguments)
        assert result.returncode == status, result.stderr
        return result.stdout

    printed = cli("backtest", *asked, "--html", tmp_path / "report.html")
    whose = f"The rules' checkpoints {'come on top of' if handling == 'keep' else 'replace'} the loop's own."
    assert f"The loop saved 2 checkpoints; under the rules it would have saved {checkpoints}. {whose}" in printed
    assert whose.replace("'", "&#39;") in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert json.loads(cli("backtest", *asked, "--json"))["runs"][0]["predicted"]["checkpoints"] == checkpoints
    swept = json.loads(cli("sweep", *asked, "--set", "high=2", "--json"))
    assert (swept["checkpoints"], swept["saves"]) == (checkpoints, handling)


def test_an_unknown_baseline_is_refused_with_those_that_there_are(backtest: Callable[..., str]) -> None:
    """The exit status is 2."""
    assert "hf_early_stopping" in backtest("--baseline", "hugging", status=2)


def test_the_tables_fit_a_terminal_of_a_hundred_columns(
    backtest: Callable[..., str], store_record: Callable[..., Path]
) -> None:
    """This holds for any run names and every baseline; two long names with the same end remain distinguishable."""
    name = "a run with a name that is as long as names of runs become, "
    for number in range(8):
        events = [
            event
            for step in range(1, 20_001, 5000)
            for event in (
                Event("step_end", step=step, elapsed_ns=step * 10**12, metrics={"loss": 1.0}),
                Event("evaluate", step=step, metrics={"eval_loss": 1.0 + number - 1 / step}),
            )
        ]
        store_record(events, run_id=f"long-{number}", name=f"{name}{number}", status="failed")

    parts = backtest("--baseline", "all").split("\n\n")
    runs, comparison = (next(part for part in parts if f"\n{row}" in part) for row in ("run-1 ", "these rules "))
    tables = [line for line in (runs + "\n" + comparison).splitlines() if not line.startswith("of: ")]

    assert max(len(line.rstrip()) for line in tables) <= 100
    assert sum("a run with" in line for line in tables) == 8


def test_the_answer_is_first_and_the_table_of_many_runs_is_bounded(
    backtest: Callable[..., str], store_record: Callable[..., Path]
) -> None:
    """A row for each of a hundred runs would fill screens."""
    for number in range(30):
        store_record([Event("step_end", step=1, metrics={"loss": 1.0})], run_id=f"short-{number}", name=f"s{number}")
    lines = backtest().splitlines()
    rest = lines.index("22 more runs (22 not stopped): --html FILE and --json list every run.")

    assert lines[0].startswith("Do not arm it. ")
    assert lines[rest - 10].startswith("run-0 ")
    assert any(line.startswith("The rules would have stopped 1 of 32 runs.") for line in lines[rest:])


def test_a_baseline_is_backtested_by_its_name(backtest: Callable[..., str]) -> None:
    """It is a shipped rule file, whose params name the metric and its direction; one that is no file is refused."""
    strict = json.loads(backtest("--json", "--set", "alpha=1", policy="prechelt_gl"))
    backwards = json.loads(backtest("--json", "--set", "mode=max", policy="hf_early_stopping"))

    assert strict["policy"]["params"] == {"metric": "eval_loss", "alpha": 1}
    assert [run["stop"]["step"] for run in backwards["runs"]] == [2, 2]
    assert "steptape ships no rules of that name" in backtest(policy="oracle", status=2)


def test_several_objectives_and_renames_are_options_of_each_command_that_judges(
    backtest: Callable[..., str], store_path: Path, store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """Each run is judged by the first of them that it has; a rename lets the rules see it."""
    events = [
        each
        for step in range(1, 11)
        for each in (
            Event("step_end", step=step, metrics={"train/loss": 3.0 if step == 4 else 1.0}),
            Event("evaluate", step=step, metrics={"score": step / 10}),
        )
    ]
    store_record(events, run_id="run-x")
    options = ("--objective", "eval_loss", "--objective", "score:max", "--rename", "train/loss=loss")

    hint, *_ = backtest().splitlines()
    told = json.loads(backtest(*options, "--json"))
    assert hint == (
        "1 of 3 runs lacks loss, which the rules read; nearest: train/loss (1). "
        "To replay over these: --rename train/loss=loss"
    )
    assert [run["objective"]["metric"] for run in told["runs"]] == ["eval_loss", "eval_loss", "score"]
    assert told["runs"][2]["stop"]["step"] == 4
    assert "train/loss read as loss" in backtest(*options)
    policy, strict = tmp_path / "policy.yaml", tmp_path / "strict.yaml"
    policy.write_text("params: {high: 2}\n" + POLICY.replace("loss > 2", "loss > high"))
    strict.write_text(policy.read_text().replace("high: 2", "high: 5"))
    for command in (["sweep", policy, "--set", "high=2,5"], ["diff", policy, strict]):
        shown = steptape(*command, "--store", store_path, *options)
        assert "Runs are judged by: eval_loss (2 runs), score (1, higher is better)" in shown.stdout, shown.stderr
        assert "train/loss read as loss" in shown.stdout


@pytest.mark.usefixtures("backtest")
def test_labels_of_runs_that_are_not_there_are_named(store_path: Path, tmp_path: Path) -> None:
    """A misspelt name would lose its labels. Those of runs that the store has, but that were not named, are fine."""
    labels = tmp_path / "labels.csv"
    rows = ["nope,1,2,x", "run-0,5,5,spike", "run-1,,,", "nope,3,4,x", "nopq,1,2,x"]
    labels.write_text("\n".join(["run,first_step,last_step,name", *rows]))

    said = steptape("backtest", "loss_spike", "run-0", "--store", store_path, "--labels", labels).stderr

    assert said == f"warning: {labels}: 2 labelled runs are not here: nope, nopq\n"


def test_a_run_that_is_named_twice_counts_once(backtest: Callable[..., str]) -> None:
    """Its id, its name and its number name the same run."""
    once = json.loads(backtest("run-0", "--json"))
    twice = json.loads(backtest("run-0", "run-0", "--json"))
    by_folders = json.loads(backtest("run-0", "run-1", "run-0", "--json"))

    assert [run["run_id"] for run in twice["runs"]] == [run["run_id"] for run in once["runs"]] == ["run-0"]
    assert [run["run_id"] for run in by_folders["runs"]] == ["run-0", "run-1"]


def test_evaluations_that_a_policy_would_add_are_not_called_saved(
    store_path: Path, store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """The loop made fewer than the rules ask for."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "controllers: [{name: e, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_evaluate]}]"
    )
    store_record([Event("step_end", step=step, metrics={"loss": 3.0}) for step in range(1, 7)], run_id="run")

    said = steptape("backtest", policy, "--store", store_path).stdout

    assert "Cut off: 0 of 6 steps (0%). The rules ask for 6 evaluations more than the 0 recorded." in said

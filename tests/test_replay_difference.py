"""A policy diff reports how a change of a policy would have changed recorded runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command_line import call as steptape

from steptape import Recorder, open_run
from steptape.replay.reports.diff import PolicyDiff, StopChange, diff_json, diff_lines, diff_policies
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

STEPS = 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two runs: the first gets worse after step 20, the second never does."""
    store = tmp_path_factory.mktemp("difference") / "runs"
    found = []
    for name, turns in (("turns", 20), ("falls", STEPS)):
        with Recorder(store, name=name) as rec:
            for step in range(1, STEPS + 1):
                loss = 4 - step / 20 if step <= turns else 2 + step / 20
                rec.step(loss=loss)
                if step % 5 == 0:
                    rec.evaluate(eval_loss=loss)
                    rec.save(f"{step}.pt", size_bytes=100)
        found.append(open_run(rec.folder))
    return found


def policy(patience: int, *, name: str = "stop", rule: str = "eval_loss > min(eval_loss, 100)", more: str = "") -> str:
    """Return a policy that stops after more than ``patience`` evaluations above the best evaluation loss."""
    return f"""
controllers:
  - name: {name}
    triggers: [on_evaluate]
    rule: {rule}
    patience: {{patience_threshold: {patience}}}
    operations: [hfcontrols.should_training_stop]
{more}"""


SAVE = "  - {name: save, triggers: [on_evaluate], rule: 'eval_loss < 3.1', operations: [hfcontrols.should_save]}"


def between(old: str, new: str, runs: list[Run]) -> PolicyDiff:
    """Return the difference between two policy texts."""
    return diff_policies(parse_policy(old), parse_policy(new), runs)


def test_less_patience_ends_a_run_earlier_and_another_as_before(runs: list[Run]) -> None:
    """The stop moves from the third worse evaluation (step 35) to the first (step 25); the best value came earlier."""
    found = between(policy(2), policy(0), runs)

    (changed,) = found.changed
    assert (changed.new.name, changed.stop, changed.steps, changed.checkpoints) == (
        "turns",
        StopChange.EARLIER,
        -10,
        -2,
    )
    assert changed.regret == 0.0
    assert found.total(lambda run: run.steps) == -10


def test_a_run_that_ends_too_early_costs_what_the_best_value_loses(runs: list[Run]) -> None:
    """Stopped at step 10, the second run has 3.5 instead of 2.0, the first instead of 3.0."""
    found = between(policy(2), policy(0, rule="eval_loss < 3.6"), runs)

    assert [(run.new.name, run.regret) for run in found.changed] == [("turns", 0.5), ("falls", 1.5)]
    regret = diff_json(found)["aggregate"]["regret"]
    assert regret == {"mean": 1.0, "low": None, "high": None, "runs": 2, "families": 1}


@pytest.mark.parametrize(
    "new",
    [
        policy(2, name="halt"),
        policy(2, rule="min(eval_loss, 100) < eval_loss"),
        "# a comment\n" + policy(2),
        policy(
            2, more="  - {name: never, triggers: [on_step_end], rule: 'loss > 9', operations: [hfcontrols.should_log]}"
        ),
    ],
    ids=["renamed", "put otherwise", "comment", "never fires"],
)
def test_what_orders_the_same_at_the_same_events_is_no_change(new: str, runs: list[Run]) -> None:
    """The text does not matter."""
    found = between(policy(2), new, runs)

    assert found.changed == ()
    assert "Behaviour is the same in 2 runs." in diff_lines(found)


def test_orders_that_leave_the_end_as_it_is_are_a_change_too(runs: list[Run]) -> None:
    """An additional checkpoint is a change; its operation is named."""
    found = between(policy(2), policy(2, more=SAVE), runs)

    assert [run.stop for run in found.changed] == [StopChange.SAME] * 2
    assert [len(run.gained) for run in found.changed] == [1, 5]
    assert "5 x hfcontrols.should_save" in "\n".join(diff_lines(found))


def test_the_title_names_the_params_in_which_two_versions_of_one_file_differ() -> None:
    """Policies of different files are distinguished by their names."""
    text = "params: {high: 2, low: 1}\ncontrollers: []"
    old, new, other = (
        parse_policy(text, source=source, params=params)
        for source, params in (("a.yaml", {}), ("a.yaml", {"high": 3}), ("b.yaml", {"high": 3}))
    )

    assert diff_lines(diff_policies(old, new, []))[0] == "### a.yaml (high = 2) → a.yaml (high = 3)"
    assert diff_lines(diff_policies(old, other, []))[0] == "### a.yaml → b.yaml"


def test_a_decision_in_shadow_is_another_order_than_one_that_acts(runs: list[Run]) -> None:
    """Arming a rule is the change that most needs to be seen."""
    found = between(policy(0).replace("rule:", "mode: shadow\n    rule:"), policy(0), runs)

    assert [(run.new.name, run.stop) for run in found.changed] == [("turns", StopChange.EARLIER)]


def test_where_the_record_cannot_tell_the_end_is_not_known(runs: list[Run]) -> None:
    """Ending an epoch early diverts a run: no number follows."""
    found = between(policy(2), policy(0).replace("should_training_stop", "should_epoch_stop"), runs)

    (changed,) = found.changed
    assert (changed.stop, changed.steps, changed.regret) == (StopChange.NOT_KNOWN, None, None)


def test_a_rule_that_begins_to_fail_is_a_change(runs: list[Run]) -> None:
    """Neither version orders anything, but the new one is broken."""
    idle, broken = policy(9), policy(9, rule="1 / (eval_loss - eval_loss) > 0")

    assert between(idle, broken, runs).changed
    assert "controller 'stop' now fails" in "\n".join(diff_lines(between(idle, broken, runs)))


def test_one_way_is_the_reverse_of_the_other(runs: list[Run]) -> None:
    """Every number changes its sign, and gained and lost are swapped."""
    there, back = between(policy(2), policy(0), runs), between(policy(0), policy(2), runs)

    assert [(run.steps, run.lost, run.gained) for run in there.runs] == [
        (None if run.steps is None else -run.steps, run.gained, run.lost) for run in back.runs
    ]


def call(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return steptape("diff", *arguments, folder=folder)


def test_the_command_writes_markdown_and_exits_with_1_when_behaviour_changes(runs: list[Run], tmp_path: Path) -> None:
    """The exit status is 0 otherwise."""
    (tmp_path / "old.yaml").write_text(policy(2))
    (tmp_path / "new.yaml").write_text(policy(0))
    store = runs[0].folder.parent

    changed = call(tmp_path, "old.yaml", "new.yaml", "--store", store)
    same = call(tmp_path, "old.yaml", "old.yaml", "--store", store)

    assert (changed.returncode, same.returncode) == (1, 0)
    assert changed.stdout.startswith(
        "### old.yaml → new.yaml\n\nBehaviour changes in 1 of 2 runs: 1 ends earlier, 10 steps"
    )
    assert "| 35 → 25 | -10 | -2 | +0.00% |" in changed.stdout


def test_policies_that_come_with_steptape_are_called_by_their_names(runs: list[Run], tmp_path: Path) -> None:
    """Their path on this machine means nothing to readers of a pull request."""
    result = call(tmp_path, "overfitting", "loss_spike", "--store", runs[0].folder.parent)

    assert result.stdout.startswith("### overfitting → loss_spike\n")


def test_the_command_s_json_has_every_run_that_changes(runs: list[Run], tmp_path: Path) -> None:
    """Params can be set for each side, so one file suffices to compare two values."""
    (tmp_path / "one.yaml").write_text("params: {limit: 3.6}\n" + policy(0, rule="eval_loss < limit"))

    result = call(tmp_path, "one.yaml", "one.yaml", runs[0].folder, "--set-new", "limit=3.1", "--json")

    document = json.loads(result.stdout)
    assert result.returncode == 1
    assert document["changed"] is True
    assert [(run["stop"], run["old_steps"], run["new_steps"]) for run in document["runs"]] == [("later", 10, 20)]
    assert document["new"]["params"] == {"limit": 3.1}


def test_a_policy_that_does_not_load_is_exit_status_2(runs: list[Run], tmp_path: Path) -> None:
    """Nothing was compared."""
    (tmp_path / "bad.yaml").write_text("controllers: 3")

    assert call(tmp_path, "overfitting", "bad.yaml", runs[0].folder).returncode == 2

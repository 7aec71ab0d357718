"""At the end of a run, the recorder names rules that decided nothing and requests that the loop never served."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import Plan, Ranks, Recorder
from steptape.rules.policy_file.policy import parse_policy

Call = Callable[[Any], object]


def step(**values: Any) -> Call:
    """A call of ``step`` with these values."""
    return lambda rec: rec.step(**values)


def ended(store: Path, rules: str, *calls: Call, caplog: pytest.LogCaptureFixture, **arguments: Any) -> list[str]:
    """Record these calls under the rules and return the warnings of the run's end."""
    store.mkdir(exist_ok=True)
    path = store / "rules.yaml"
    path.write_text(f"controllers:\n{textwrap.indent(textwrap.dedent(rules), '  ')}")
    rec = Recorder(store / "runs", rules=path, **arguments)
    for call in calls:
        call(rec)
    caplog.clear()
    rec.close()
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


DEAD = """
- {name: over, triggers: [on_evaluate], rule: loss > 3, operations: []}
- {name: later, triggers: [on_epoch_end, on_save], rule: loss > 3, operations: []}
- {name: other, triggers: [on_evaluate], rule: loss > 4, operations: []}
- {name: alive, triggers: [on_evaluate, on_step_end], rule: loss > 3, operations: []}
- {name: begin, triggers: [on_optimizer_step], rule: loss > 3, operations: []}
"""


def test_rules_whose_trigger_never_came_are_named_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They decided nothing, and the loop would never know."""
    assert ended(tmp_path, DEAD, *[step(loss=1.0)] * 3, caplog=caplog) == [
        "controllers 'over', 'other': on_evaluate did not occur in this run, so they decided nothing. Call "
        "rec.evaluate(...)",
        "controller 'later': on_epoch_end and on_save did not occur in this run, so it decided nothing. Call "
        "rec.epoch_end(...) or rec.save(path)",
        "controller 'begin': on_optimizer_step did not occur in this run, so it decided nothing. Call "
        "rec.event('optimizer_step')",
    ]


def test_a_rule_that_waits_for_a_misspelt_metric_is_named_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One is silent whose metrics the run lacks under any name, as 'requires' asks."""
    rules = """
        - {name: waits, triggers: [on_step_end], rule: loss > 2, requires: [los], operations: []}
        - {name: absent, triggers: [on_step_end], rule: acc > 2, requires: [acc], operations: []}
        - {name: other, triggers: [on_step_end], rule: loss > 2, requires: [tokens_seen], operations: []}
        - {name: never, triggers: [], rule: loss > 2, operations: []}
    """

    assert ended(tmp_path, rules, *[step(loss=5.0)] * 3, caplog=caplog) == [
        "controller 'waits': no event has carried this series in this run; got 'los'. Did you mean 'loss'?"
    ]


def test_rules_whose_trigger_came_and_runs_that_broke_off_are_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that fails, records nothing or resumes may end before its first evaluation."""
    rules = "- {name: over, triggers: [on_evaluate, on_train_end], rule: loss > 3, operations: []}"
    assert ended(tmp_path, rules, step(loss=1.0), caplog=caplog) == []
    assert "did not occur" not in " ".join(ended(tmp_path, DEAD, caplog=caplog))

    policy = parse_policy("controllers: [{name: o, triggers: [on_evaluate], rule: loss > 3, operations: []}]")
    with contextlib.suppress(ZeroDivisionError), Recorder(tmp_path / "failed", rules=policy) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
        raise ZeroDivisionError
    with Recorder(tmp_path / "failed", rules=policy, resume=state) as again:
        again.step(loss=1.0)

    assert "did not occur" not in caplog.text


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([lambda rec: rec.log(loss=1.0)] * 2, ["on_step_end"]),
        ([lambda rec: rec.at(5), lambda rec: rec.log(loss=1.0)], ["on_step_end"]),
        ([lambda rec: rec.evaluate(loss=1.0)], ["on_step_end", "on_log"]),
        ([step(loss=1.0)] * 2, ["on_log"]),
        ([step(awaits=("loss",)), lambda rec: rec.late(1, loss=1.0)], ["on_log"]),
        ([step(loss=1.0), lambda rec: rec.late(1, loss=1.0)], []),
        ([lambda rec: rec.annotate("a note"), lambda rec: rec.declare(total_steps=5)], []),
    ],
    ids=["log", "log at a step", "evaluate", "step", "late step", "late log", "nothing"],
)
def test_a_trigger_counts_as_come_only_when_its_event_was_recorded(
    tmp_path: Path, calls: list[Call], named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that logs everything has no ``step_end`` at all."""
    rules = """
    - {name: steps, triggers: [on_step_end], rule: loss > 3, operations: []}
    - {name: logs, triggers: [on_log], rule: loss > 3, operations: []}
    - {name: both, triggers: [on_log, on_evaluate, on_step_end], rule: loss > 3, operations: []}
    """
    said = [line.partition(" did not occur in this run") for line in ended(tmp_path, rules, *calls, caplog=caplog)]

    assert [before.rpartition(" ")[2] for before, found, _ in said if found] == named


@pytest.mark.parametrize("rule", ["progress > 0.2 and max_steps > 0", "milestone(every=0.5)"])
def test_a_rule_that_reads_the_length_of_a_run_without_one_is_named_at_the_end(
    tmp_path: Path, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A share of an unknown length is unknown. What the loop declares late counts."""
    rules = f"- {{name: late, triggers: [on_step_end], rule: '{rule}', operations: []}}"
    missing = ended(tmp_path / "a", rules, step(loss=1.0), caplog=caplog)
    declared = ended(tmp_path / "b", rules, lambda rec: rec.declare(total_steps=9), step(loss=1.0), caplog=caplog)

    assert missing == [
        "controller 'late': the length of the run is read, but this run has none. Write Recorder(..., "
        "total_steps=...), or call rec.declare(total_steps=...)"
    ]
    assert declared == []


@pytest.mark.parametrize(
    ("calls", "is_named"),
    [
        ([step(loss=1.0)], True),
        ([step(loss=1.0, epoch=0.5)], False),
        ([lambda rec: rec.epoch_begin(), step(loss=1.0)], False),
        ([lambda rec: rec.step({"loss": 1.0, "epoch": 0.5})], False),
        ([step(loss=1.0), lambda rec: rec.log({"epoch": 0.5})], False),
    ],
)
def test_a_rule_that_reads_the_epoch_of_a_loop_without_one_is_named_at_the_end(
    tmp_path: Path, calls: list[Call], is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing tells where the run is in its epochs."""
    rules = "- {name: late, triggers: [on_step_end], rule: epoch >= 1, operations: []}"
    message = (
        "controller 'late': 'epoch' is read, but this run never had one. Call rec.epoch_begin(), or rec.step(epoch=...)"
    )

    said = ended(tmp_path, rules, *calls, caplog=caplog)

    assert said == ([message] if is_named else [])


def test_a_rule_that_reads_the_epoch_of_a_loop_with_known_epochs_is_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They follow from ``steps_per_epoch``."""
    rules = "- {name: late, triggers: [on_step_end], rule: epoch >= 1, operations: []}"

    assert ended(tmp_path, rules, step(loss=1.0), caplog=caplog, plan=Plan(steps_per_epoch=2)) == []


ASKING = """
- name: asks
  triggers: [on_step_end]
  rule: loss > 3
  operations: [hfcontrols.should_save, hfcontrols.should_evaluate]
"""
HIGH = step(loss=4.0)


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([HIGH, HIGH, step(loss=1.0)], ["checkpoint at step 1", "evaluation at step 1"]),
        ([HIGH, lambda rec: rec.save("a", size_bytes=1), step(loss=1.0)], ["evaluation at step 1"]),
        (
            [HIGH, lambda rec: rec.evaluate(x=1.0), HIGH, step(loss=1.0)],
            ["checkpoint at step 1", "evaluation at step 2"],
        ),
        ([step(loss=1.0), HIGH], ["checkpoint at step 2", "evaluation at step 2"]),
    ],
    ids=["never", "saved", "evaluated once", "at the end"],
)
def test_checkpoints_and_evaluations_that_rules_asked_for_in_vain_are_named_at_the_end(
    tmp_path: Path, calls: list[Call], named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """So are those that the last event ordered: the loop could still have served them."""
    said = ended(tmp_path, ASKING, *calls, caplog=caplog)

    assert [message.partition("asked for ")[2].partition(", but")[0].split(" ", 1)[1] for message in said] == named
    if len(calls) == 3 and len(said) == 2 and calls[1] is HIGH:
        assert said == [
            "a rule asked for a checkpoint at step 1, but none was recorded until the run ended at step 3. Save one "
            "when rec.step(...).should_save is true and call rec.save(path), or give callbacks={'save': ...}",
            "a rule asked for an evaluation at step 1, but none was recorded until the run ended at step 3. "
            "Evaluate when rec.step(...).should_evaluate is true and call rec.evaluate(...), or give "
            "callbacks={'evaluate': ...}",
        ]


def test_a_checkpoint_that_is_ordered_together_with_a_stop_is_named_unless_the_loop_saves_before_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``loss_spike`` keeps the weights for inspection: nobody finds out later that there are none."""
    for saves in (False, True):
        with Recorder(tmp_path, rules="loss_spike") as rec:
            for number in range(100):
                control = rec.step(loss=1.0 if number < 60 else 9.0)
                if control.should_save and saves:
                    rec.save("a.pt", size_bytes=1)
                if control.should_stop:
                    break

    assert [message for message in caplog.messages if "asked for" in message] == [
        "a rule asked for a checkpoint at step 65, but none was recorded until the run ended at step 65. Save one when "
        "rec.step(...).should_save is true and call rec.save(path), or give callbacks={'save': ...}"
    ]


@pytest.mark.parametrize(
    ("calls", "is_named"),
    [([HIGH, step(loss=1.0)], True), ([HIGH], False), ([HIGH, lambda rec: rec.epoch_begin(), step(loss=1.0)], False)],
    ids=["trained on", "left at once", "next epoch"],
)
def test_an_epoch_that_a_loop_does_not_end_when_a_rule_orders_it_is_named_at_the_end(
    tmp_path: Path, calls: list[Call], is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The last epoch needs no successor."""
    rules = "- {name: ends, triggers: [on_step_end], rule: loss > 3, operations: [hfcontrols.should_epoch_stop]}"

    assert (
        ended(tmp_path, rules, *calls, caplog=caplog)
        == [
            "a rule asked for the end of an epoch at step 1, but none was recorded until the run ended at step 2. "
            "Leave it when rec.step(...).should_stop_epoch is true. The next begins with rec.epoch_begin(...)"
        ]
        * is_named
    )


def test_an_incident_beyond_the_last_step_is_named_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may have been a slip of digits; during the run it may lie ahead."""
    with Recorder(tmp_path) as rec:
        rec.annotate("bad shard", incident="shard", first_step=20, last_step=30)
        rec.annotate("bad shard", incident="shard", first_step=2, last_step=30)
        for _ in range(10):
            rec.step(loss=1.0)

        assert caplog.messages == []

    assert caplog.messages == [
        "an incident at steps 20 to 30 begins after the run's last step, 10: no rule can find it"
    ]


ALL_RANKS = """
- {name: any, triggers: [on_step_end], rule: any_rank(loss > 3), operations: []}
- {name: own, triggers: [on_step_end], rule: loss > 3, operations: []}
- {name: gathered, triggers: [on_ranks], rule: max_rank(loss) > 3, operations: []}
"""


@pytest.mark.parametrize(("world_size", "is_named"), [(1, False), (8, True)])
def test_rules_on_all_ranks_that_nothing_feeds_are_named_at_the_end(
    tmp_path: Path, world_size: int, is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One process of eight gathers nothing. A job of one process needs no agreement."""
    said = ended(tmp_path, ALL_RANKS, *[HIGH] * 3, caplog=caplog, ranks=Ranks(world_size=world_size))

    assert (
        said
        == [
            "controller 'gathered': on_ranks did not occur in this run, so it decided nothing. Call rec.agree(...)",
            "controller 'any': the values of all ranks are read, but this run never gathered any. "
            "Create the recorder after torch.distributed's process group, without rank=, and call rec.agree() on every "
            "rank",
        ]
        * is_named
    )


def test_a_resumed_run_of_one_process_gathers_nothing_and_has_no_rule_to_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own values are those of all ranks, and what did not come in this attempt came in the one before."""
    ended(tmp_path, ALL_RANKS, HIGH, caplog=caplog, run_id="job")

    assert ended(tmp_path, ALL_RANKS, HIGH, caplog=caplog, resume=("job", 1)) == []


def test_rules_on_all_ranks_without_a_process_group_are_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The launcher says how many ranks there are, but nothing connects them."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    said = ended(tmp_path, ALL_RANKS, HIGH, lambda rec: rec.agree(), caplog=caplog)

    assert "the values of all ranks are read, but this run never gathered any" in said[-1]


def test_rules_that_wait_for_sample_losses_in_vain_are_named_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run whose steps have some is not: its batches may all be good."""
    said = []
    for samples in (None, [1.0, 1.0]):
        with Recorder(tmp_path, rules="bad_batches", quiet=True) as rec:
            rec.step(loss=1.0, samples=samples)
        said.append([record.message for record in caplog.records])
        caplog.clear()

    assert said == [
        [
            "controller metric 'batch': sample losses are read, but no step of this run had any, so rules that read "
            "them decided nothing. Write rec.step(samples=..., sample_ids=...)"
        ],
        [],
    ]

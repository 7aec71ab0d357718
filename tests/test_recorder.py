"""The recorder writes what a training loop does, returns control flags, and records how a run ends."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from waiting import until

from steptape import Journal, Plan, Recorder, TelemetryError, open_run, verify
from steptape.rules.errors import PolicyError
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.run import Run
from steptape.store.run_folder import journal_name

STOP_AT_SPIKE = """
params: {spike: 3.0}
controllers:
  - name: loss_spike
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, 10)
    operations: [hfcontrols.should_training_stop]
  - name: not_finite
    triggers: [on_step_end]
    rule: not isfinite(loss)
    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The path of a store that the recorder creates."""
    return tmp_path / "runs"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A rule file with two stops."""
    path = tmp_path / "policy.yaml"
    path.write_text(STOP_AT_SPIKE)
    return path


def events(run: Run, kind: str) -> list[Event]:
    """Return the run's events of one kind."""
    return [event for event in run.events() if event.kind == kind]


def test_a_torch_loop_is_recorded_step_by_step(store: Path) -> None:
    """The log holds the loop's floats and tensors, epochs, evaluations and checkpoints."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[float] = []
    with Recorder(store, name="linear", plan=Plan(steps_per_epoch=5, total_epochs=2)) as rec:
        for _ in range(2):
            rec.epoch_begin()
            for _ in range(5):
                losses = torch.nn.functional.cross_entropy(
                    model(torch.randn(8, 4)), torch.randint(2, (8,)), reduction="none"
                )
                torch.autograd.backward(losses.mean())
                optimizer.step()
                optimizer.zero_grad()
                rec.step(loss=losses.mean(), lr=0.1, samples=losses, sample_ids=torch.arange(8))
                seen.append(losses.mean().item())
            rec.evaluate(eval_loss=seen[-1])
            path = store / "model.pt"
            torch.save(model.state_dict(), path)
            rec.save(path)
            rec.epoch_end()

    run = open_run(rec.folder)

    assert [event.metrics["loss"] for event in events(run, "step_end")] == seen
    assert [event.step for event in events(run, "step_end")] == list(range(1, 11))
    assert [event.epoch for event in events(run, "step_end")] == pytest.approx([n / 5 for n in range(1, 11)])
    assert [(event.step, event.epoch) for event in events(run, "epoch_end")] == [(5, 1.0), (10, 2.0)]
    assert events(run, "save")[0].attrs["size_bytes"] == path.stat().st_size
    assert run.samples().num_rows == 80
    assert (run.status, run.info.name, run.info.last.steps, run.info.last.plan.max_steps()) == (
        "completed",
        "linear",
        10,
        10,
    )


def test_numbers_of_every_sort_become_float64(store: Path) -> None:
    """Ints, bools, 0-d tensors and numpy scalars are metrics."""
    import numpy as np

    with Recorder(store) as rec:
        rec.step(
            a=1, b=True, c=torch.tensor(0.1), d=np.float32(0.25), e=np.int64(3), f=torch.tensor([2.0]), g=np.array(4.0)
        )

    metrics = events(open_run(rec.folder), "step_end")[0].metrics

    assert metrics == {"a": 1.0, "b": 1.0, "c": float(torch.tensor(0.1)), "d": 0.25, "e": 3.0, "f": 2.0, "g": 4.0}


def test_nan_and_infinite_losses_are_values_and_none_is_not_recorded(store: Path) -> None:
    """A diverged loss is recorded as it was."""
    with Recorder(store) as rec:
        rec.step(loss=math.nan, grad_norm=None)
        rec.step(loss=math.inf)
        rec.step(loss=-math.inf)

    first, second, third = events(open_run(rec.folder), "step_end")

    assert math.isnan(first.metrics["loss"])
    assert "grad_norm" not in first.metrics
    assert (second.metrics["loss"], third.metrics["loss"]) == (math.inf, -math.inf)


def test_floats_are_read_back_bit_for_bit(store: Path) -> None:
    """Logged and read values are bit-identical: denormals, signed zero, NaN."""
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.inf, math.nan]
    with Recorder(store) as rec:
        for value in values:
            rec.step(loss=value)

    read = [event.metrics["loss"] for event in events(open_run(rec.folder), "step_end")]

    assert [value.hex() for value in read] == [value.hex() for value in values]


def test_a_metric_that_changes_type_loses_nothing(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is not a number becomes an attribute; an array is warned of once."""
    with Recorder(store) as rec:
        rec.step(loss=1.0)
        rec.step(loss="diverged")
        rec.step(loss=torch.ones(3))
        rec.step(loss=torch.ones(3))
        rec.step(loss=2)

    steps = events(open_run(rec.folder), "step_end")

    assert [step.metrics.get("loss") for step in steps] == [1.0, None, None, None, 2.0]
    assert steps[1].attrs == {"loss": "diverged"}
    assert len([record for record in caplog.records if "shape (3,)" in record.getMessage()]) == 1


def test_an_integer_is_recorded_as_the_float_that_is_nearest_to_it(store: Path) -> None:
    """Rules and curves see it. One beyond all floats is an attribute."""
    given = [2**53 + 1, 2**62, 2**70, 10**23, -(10**20), 10**400]
    with Recorder(store) as rec:
        for value in given:
            rec.step(loss=value)

    *steps, last = events(open_run(rec.folder), "step_end")
    assert [step.metrics["loss"] for step in steps] == [float(value) for value in given[:-1]]
    assert (last.metrics, last.attrs) == ({}, {"loss": 10**400})


def test_names_that_are_keywords_and_nested_values_go_in_a_mapping(store: Path) -> None:
    """A metric may be called step or epoch, and nested mappings are flattened with a slash."""
    with Recorder(store) as rec:
        rec.step({"step": 7.0, "epoch": 0.5, "train": {"loss": 1.0}}, Loss=2.0, loss=3.0)

    run = open_run(rec.folder)

    expected = {"step": 7.0, "epoch": 0.5, "train/loss": 1.0, "Loss": 2.0, "loss": 3.0}
    assert events(run, "step_end")[0].metrics == expected
    assert [run.series(name)["value"].to_pylist() for name in expected] == [[value] for value in expected.values()]


@pytest.mark.parametrize(
    "ids", [["a", "b", "ü"], [5, 6, 2**62], torch.tensor([5, 6, 7]), None], ids=["text", "ints", "tensor", "none"]
)
def test_sample_losses_are_recorded_with_their_ids(store: Path, ids: object) -> None:
    """Ids are text or integers, from lists or tensors; without ids only the position is recorded."""
    with Recorder(store) as rec:
        rec.step(loss=2.0, samples=[1.0, 2.0, 3.0], sample_ids=ids, sample_tokens=[10, 20, 30])

    rows = open_run(rec.folder).samples().to_pylist()

    expected = [None] * 3 if ids is None else [str(int(i)) if not isinstance(i, str) else i for i in ids]  # type: ignore[attr-defined]
    assert [row["sample_id"] for row in rows] == expected
    assert [(row["position"], row["loss"], row["tokens"]) for row in rows] == [(0, 1.0, 10), (1, 2.0, 20), (2, 3.0, 30)]


def test_sample_losses_that_do_not_fit_cost_a_warning_and_not_the_step(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The step's own values are still recorded, and the user is warned once."""
    with Recorder(store) as rec:
        rec.step(loss=1.0, samples=[1.0, 2.0], sample_ids=[1])
        rec.step(loss=1.0, samples=[1.0, 2.0], sample_ids=[1])

    assert len(events(open_run(rec.folder), "step_end")) == 2
    assert [r.getMessage() for r in caplog.records] == ["sample losses were not recorded: 1 sample_ids for 2 samples"]


def test_strict_raises_what_would_be_warned_about(store: Path) -> None:
    """``strict=True`` turns the warning into an error."""
    with Recorder(store, strict=True) as rec, pytest.raises(TelemetryError, match="1 sample_ids for 2 samples"):
        rec.step(loss=1.0, samples=[1.0, 2.0], sample_ids=[1])


def test_log_every_adds_log_events_with_the_values_of_the_step(store: Path) -> None:
    """TrAC's training-loss metrics read log events."""
    with Recorder(store, log_every=2) as rec:
        for loss in (4.0, 3.0, 2.0, 1.0):
            rec.step(loss=loss)

    assert [(e.step, e.metrics["loss"]) for e in events(open_run(rec.folder), "log")] == [(2, 3.0), (4, 1.0)]


def test_annotations_hold_any_json_value(store: Path) -> None:
    """Notes are facts too; non-finite numbers are spelled."""
    with Recorder(store) as rec:
        rec.step(loss=1.0)
        rec.annotate("changed the data", shards=[1, 2], ratio=math.nan, path=Path("x"))

    note = events(open_run(rec.folder), "annotation")[0]

    assert note.step == 1
    assert note.attrs == {"text": "changed the data", "shards": [1, 2], "ratio": "NaN", "path": "x"}


def test_a_rule_stops_the_run_and_the_decision_is_recorded_with_its_values(store: Path, policy: Path) -> None:
    """The event comes first, then the decision, then the flag."""
    with Recorder(store, rules=policy) as rec:
        steps = 0
        for loss in [1.0] * 20 + [50.0, 1.0, 1.0]:
            steps += 1
            if rec.step(loss=loss).should_stop:
                break

    run = open_run(rec.folder)
    decision = events(run, "decision")[0]

    assert (steps, run.status) == (21, "stopped")
    assert (decision.step, decision.attrs["controller"]) == (21, "loss_spike")
    assert decision.attrs["values"] == {"loss": 50.0, "spike": 3.0, "mean(loss, 10)": 5.9}
    assert decision.attrs["event_seq"] == decision.seq - 1


def test_stop_is_sticky_and_the_other_flags_clear_when_served(store: Path, policy: Path) -> None:
    """A loop may read its flags at any time."""
    with Recorder(store, rules=policy) as rec:
        control = rec.step(loss=math.nan)
        before = (control.should_stop, control.should_save)
        rec.save("nowhere.pt")
        after = (control.should_stop, control.should_save)

    assert (before, after) == ((True, True), (True, False))
    assert rec.control is control


def test_callbacks_run_an_ordered_chain_by_themselves(store: Path, tmp_path: Path) -> None:
    """Each operation's callback runs in turn (evaluate, judge, checkpoint, stop), and rules judge its events too."""
    policy = tmp_path / "chain.yaml"
    policy.write_text("""
controllers:
  - name: look
    triggers: [on_step_end]
    rule: loss < 1
    operations: [hfcontrols.should_evaluate]
  - name: good
    triggers: [on_evaluate]
    rule: eval_loss < 0.5
    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]
""")
    chain: list[str] = []

    def on_evaluate() -> None:
        chain.append("evaluate")
        rec.evaluate(eval_loss=0.4)

    def on_save() -> None:
        chain.append("save")
        rec.save("model.pt", size_bytes=1)

    with Recorder(
        store, rules=policy, callbacks={"evaluate": on_evaluate, "save": on_save, "stop": lambda: chain.append("stop")}
    ) as rec:
        rec.step(loss=2.0)
        rec.step(loss=0.9)

    kinds = [event.kind for event in open_run(rec.folder).events()][1:-1]
    assert chain == ["evaluate", "save", "stop"]
    assert kinds == ["step_end", "step_end", "decision", "evaluate", "decision", "save"]
    assert rec.control.should_stop
    assert not rec.control.should_evaluate


def test_a_failing_rule_is_recorded_once_with_a_count_and_training_goes_on(store: Path, tmp_path: Path) -> None:
    """A rule's error does not affect the run and is not silent."""
    policy = tmp_path / "failing.yaml"
    policy.write_text("""
controllers:
  - name: divides
    triggers: [on_step_end]
    rule: 1 / loss > 2
    operations: [hfcontrols.should_training_stop]
""")
    with Recorder(store, rules=policy) as rec:
        for loss in (0.0, 0.0, 1.0):
            rec.step(loss=loss)

    run = open_run(rec.folder)
    assert len(events(run, "rule_error")) == 1
    assert events(run, "train_end")[0].attrs["rule_errors"] == {"divides": 2}
    assert run.status == "completed"


def test_what_is_probably_wrong_in_a_policy_is_logged_at_the_start(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warnings are those of ``steptape check``, without the advice about NaN."""
    policy = tmp_path / "p.yaml"
    policy.write_text("controllers: [{name: c, triggers: [on_step_end], rule: loss > '2' or loss > 3, operations: []}]")
    with Recorder(store, rules=policy) as rec:
        rec.step(loss=1.0)

    assert [record.getMessage() for record in caplog.records if "warning:" in record.getMessage()] == [
        f"{policy}:1:63: warning: controller 'c': a comparison of a number with a text fails at every event. "
        "Write 2 without quotes. [type]"
    ]


def test_log_control_speaks_through_the_log(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rule's message is logged at its own level."""
    policy = tmp_path / "message.yaml"
    policy.write_text("""
operations:
  - name: note
    class: LogControl
    arguments: {log_format: "{control_name} at {step}", log_level: warning}
controllers:
  - name: high
    triggers: [on_step_end]
    rule: loss > 1
    operations: [note.should_log]
""")
    with caplog.at_level(logging.INFO), Recorder(store, rules=policy) as rec:
        rec.step(loss=2.0)

    assert ("steptape.rules", logging.WARNING, "high at 1") in caplog.record_tuples


def test_a_loop_that_raises_is_recorded_as_failed_and_the_error_goes_on(store: Path) -> None:
    """Type, message and traceback of the exception are kept, with the line of code that raised."""
    rec = Recorder(store)
    with pytest.raises(ZeroDivisionError), rec:
        rec.step(loss=1 / 0)

    run = open_run(rec.folder)

    assert run.status == "failed"
    failure = run.info.last.failure
    assert failure is not None
    assert (failure["type"], failure["message"]) == ("ZeroDivisionError", "division by zero")
    assert failure["traceback"].startswith("Traceback (most recent call last):\n")
    assert "test_recorder.py" in failure["traceback"]
    assert "rec.step(loss=1 / 0)" in failure["traceback"]
    assert failure["traceback"].splitlines() == events(run, "failure")[0].attrs["traceback"]
    assert events(run, "train_end") == []


def test_ctrl_c_ends_a_run_as_interrupted(store: Path) -> None:
    """Stopping by hand is not a failure."""
    with pytest.raises(KeyboardInterrupt), Recorder(store) as rec:
        raise KeyboardInterrupt

    assert open_run(rec.folder).status == "interrupted"


def test_a_policy_that_does_not_load_leaves_no_run_behind(store: Path, tmp_path: Path) -> None:
    """Rules are refused before anything is written."""
    policy = tmp_path / "broken.yaml"
    policy.write_text("controllers: [{name: x, triggers: [on_step], rule: men(loss, 3) > 1, operations: [a.b]}]")

    with pytest.raises(PolicyError) as caught:
        Recorder(store, rules=policy)

    assert len(caught.value.problems) >= 3
    assert not store.exists()


def test_a_store_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    """The error comes before a GPU-week, not after."""
    (tmp_path / "file").write_text("")

    with pytest.raises(TelemetryError, match="cannot be written"):
        Recorder(tmp_path / "file" / "runs")


def test_an_empty_run_is_a_run(store: Path) -> None:
    """A run without events is a fact as well."""
    with Recorder(store) as rec:
        pass

    run = open_run(rec.folder)

    assert [event.kind for event in run.events()] == ["train_begin", "train_end"]
    assert (run.status, run.info.last.steps) == ("completed", 0)


def test_what_a_run_was_is_kept_with_it(store: Path, policy: Path) -> None:
    """The run keeps name, group, tags, plan, config without secrets, the rules verbatim, host and versions."""
    config = {"lr": 0.1, "hf_token": "hf_123", "pad_token": "<pad>", "max_tokens": 5, "wandb": {"api_key": "x"}}
    config |= {
        "wandb_key": "x",
        "openai-key": "x",
        "auth": "x",
        "db_dsn": "x",
        "cookie": "x",
        "pass": "x",
        "bearer": "x",
    }
    config |= {"image_key": "image", "author": "me", "two_pass": "yes"}
    config |= {"data": "https://me:pw@host/x", "repository": "ssh://git@host:22/x", "other": "a:b@c"}
    with Recorder(store, name="n", group="g", tags=["a", "b"], config=config, rules=policy, total_steps=9) as rec:
        rec.step(loss=1.0)

    document = json.loads((rec.folder / "run.json").read_text())
    attempt = document["attempts"][0]

    assert (document["name"], document["group"], document["tags"]) == ("n", "g", ["a", "b"])
    assert document["config"] == {
        "lr": 0.1,
        "hf_token": "[redacted]",
        "pad_token": "<pad>",
        "max_tokens": 5,
        "wandb": {"api_key": "[redacted]"},
        **dict.fromkeys(("wandb_key", "openai-key", "auth", "db_dsn", "cookie", "pass", "bearer"), "[redacted]"),
        "image_key": "image",
        "author": "me",
        "two_pass": "yes",
        "data": "https://me:[redacted]@host/x",
        "repository": "ssh://git@host:22/x",
        "other": "a:b@c",
    }
    assert attempt["policy"]["text"] == STOP_AT_SPIKE
    assert len(attempt["policy"]["digest"]) == 64
    assert attempt["plan"]["total_steps"] == 9
    assert attempt["environment"]["host"]
    assert attempt["environment"]["versions"]["torch"].startswith(torch.__version__.split("+")[0])


def test_configs_come_as_dataclasses_and_namespaces_too(store: Path) -> None:
    """Any object that holds hyper-parameters is stored as an object."""

    @dataclass
    class Config:
        lr: float = 0.1
        password: str = "x"

    folders = []
    for config in (Config(), argparse.Namespace(lr=0.1, password="x")):
        with Recorder(store, config=config) as rec:
            folders.append(rec.folder)

    assert [open_run(folder).info.config for folder in folders] == [{"lr": 0.1, "password": "[redacted]"}] * 2


def test_a_finished_run_is_sealed_into_parquet(store: Path) -> None:
    """No journal remains; the folder holds run.json, the columns, the digests, the summary and one file per table."""
    with Recorder(store) as rec:
        for _ in range(10):
            rec.step(loss=1.0, samples=[1.0])
    rec.close(seal=True)

    names = sorted(path.name.split("-")[0] for path in rec.folder.iterdir())

    assert names == ["columns.json", "digests.json", "events", "run.json", "samples", "summary.jsonl"]


def test_a_journal_in_small_segments_is_sealed_while_the_run_goes_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process converts a growing run to Parquet, and reads give the same events throughout."""
    monkeypatch.setitem(cast("dict[str, int]", JournalWriter.__init__.__kwdefaults__), "segment_bytes", 4096)
    with Recorder(store) as rec:
        for step in range(400):
            rec.step(loss=float(step))
        during = [event.metrics["loss"] for event in events(open_run(rec.folder), "step_end")]
    rec.close(seal=True)

    after = [event.metrics["loss"] for event in events(open_run(rec.folder), "step_end")]

    assert during == after == [float(step) for step in range(400)]
    assert len(list(rec.folder.glob("events-*.parquet"))) == 1


def test_a_failing_journal_never_ends_training(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lost events are counted, warned about once, and recorded when writing works again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(store) as rec:
        rec.step(loss=1.0)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # No segment fits.
            for _ in range(3):
                rec.step(loss=2.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        rec.step(loss=3.0)

    run = open_run(rec.folder)

    assert [event.metrics["loss"] for event in events(run, "step_end")] == [1.0, 3.0]
    assert events(run, "gap")[0].attrs["lost_events"] == 3
    assert len([record for record in caplog.records if "could not record" in record.getMessage()]) == 1


def test_a_journal_that_reaches_the_limit_of_file_sizes_is_continued_in_another(store: Path) -> None:
    """As under ``ulimit -f``. No event is lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(store) as rec:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
            for step in range(3_000):
                rec.step(loss=float(step))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    run = open_run(rec.folder)

    assert [event.metrics["loss"] for event in events(run, "step_end")] == [float(step) for step in range(3_000)]
    assert events(run, "gap") == []


def test_closing_twice_and_stepping_after_the_end_are_harmless(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run's end is unchanged, and the late step is told: not as an event that was lost."""
    rec = Recorder(store)
    rec.step(loss=1.0)
    rec.close()
    rec.close()
    rec.step(loss=2.0)

    assert len(events(open_run(rec.folder), "step_end")) == 1
    assert "has ended: calls are not recorded any more" in caplog.text


def test_durability_against_power_loss_is_stated_with_the_run(store: Path) -> None:
    """Readers need the sync interval to know what a power loss may have cost."""
    with Recorder(store, journal=Journal(sync_every_s=0.05)) as rec:
        rec.step(loss=1.0)
    with Recorder(store) as plain:
        plain.step(loss=1.0)

    assert open_run(rec.folder).info.last.sync_every_s == 0.05
    assert open_run(plain.folder).info.last.sync_every_s is None
    assert len(events(open_run(rec.folder), "step_end")) == 1


@pytest.mark.parametrize("sync_every_s", [0, -1, math.nan, "1"])
def test_an_interval_between_syncs_that_is_none_is_refused(store: Path, sync_every_s: Any) -> None:
    """The error comes before anything is written."""
    with pytest.raises(TelemetryError, match=r"Journal\.sync_every_s must be a number above 0"):
        Recorder(store, journal=Journal(sync_every_s=sync_every_s))

    assert not store.exists()


def test_a_run_whose_folder_is_deleted_goes_on_in_a_new_one(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Deleted events are gone; later ones form a run again, with a gap event."""
    with Recorder(store, name="again") as rec:
        rec.step(loss=1.0)
        shutil.rmtree(rec.folder)

        def is_back() -> bool:
            rec.step(loss=2.0)
            return (rec.folder / "run.json").exists()

        until(is_back)
        rec.step(loss=3.0)

    run = open_run(rec.folder)

    assert (run.info.name, run.status) == ("again", "completed")
    assert events(run, "step_end")[-1].metrics == {"loss": 3.0}
    assert "folder was deleted" in caplog.text


def test_a_recorder_whose_folder_was_deleted_leaves_another_recording_of_its_id_alone(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It trains on, unrecorded, and does not write its end there either."""
    with Recorder(store, run_id="nightly") as first:
        first.step(loss=1.0)
        shutil.rmtree(first.folder)
        with Recorder(store, run_id="nightly") as second:
            second.step(loss=2.0)

            def has_noticed() -> bool:
                first.step(loss=1.0)
                return "another recording with this run id has taken" in caplog.text

            until(has_noticed)
    run = open_run(second.folder)

    assert run.series("loss")["value"].to_pylist() == [2.0]
    assert (run.status, run.info.last.environment["pid"], run.digest_faults()) == ("completed", os.getpid(), [])
    assert "Give one of the two another run id" in caplog.text


def test_a_decision_that_could_not_be_written_reaches_the_loop_when_it_can(store: Path, policy: Path) -> None:
    """The disk is full after the event and before the decision: the stop comes later and is not lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(store, rules=policy) as rec:
        rec.step(loss=1.0)
        before = rec._live.event_log.journal._size
        rec.step(loss=1.0)
        size_of_event = rec._live.event_log.journal._size - before
        full_at = rec._live.event_log.journal._size + size_of_event + 8
        next_segment = rec.folder / journal_name(0, 0, rec._live.event_log.journal.seq + 1)
        next_segment.touch()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, hard))
            while_full = rec.step(loss=math.nan).should_stop
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            next_segment.unlink()
        afterwards = rec.step(loss=1.0).should_stop

    run = open_run(rec.folder)

    assert (while_full, afterwards, run.status) == (False, True, "stopped")
    assert [event.attrs["controller"] for event in events(run, "decision")] == ["not_finite"]
    assert verify(run).identical


def test_attributes_of_whatever_depth_are_recorded_and_sealed_or_told_of(tmp_path: Path) -> None:
    """An attribute that a loop can write from the shallowest call is never too deep for a sealer or a reader."""
    depths = (100, *range(300, 1_100, 4))

    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = {"a": value}
        return value

    def record() -> None:
        with Recorder(tmp_path, run_id="deep") as rec:
            for depth in depths:
                rec.annotate(str(depth), nested=nested(depth))
        rec.close(seal=True)

    with ThreadPoolExecutor(1) as thread:  # A new thread has a shallow call stack.
        thread.submit(record).result()
        events = thread.submit(lambda: list(open_run(tmp_path / "deep").events())).result()
    recorded = [int(event.attrs["text"]) for event in events if event.kind == "annotation"]

    assert recorded == list(depths[: len(recorded)])
    assert 300 < max(recorded) < max(depths)
    assert sum(event.attrs["lost_events"] for event in events if event.kind == "gap") == len(depths) - len(recorded)
    assert not list((tmp_path / "deep").glob("journal-*"))

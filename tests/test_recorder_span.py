"""Spans: phases of a loop are timed and recorded at their end, whatever the block does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import PATIENCE_S

from steptape import Recorder, TelemetryError, load_policy, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.store.events import Event

SLOW = """
controllers:
  - name: slow
    triggers: [on_span]
    rule: series("Time/eval_seconds") >= 0 and step > 1
    operations: [hfcontrols.should_save]
  - name: failed
    triggers: [on_span]
    rule: series("Checkpoint/ok") == 0
    operations: [hfcontrols.should_training_stop]
"""

PLAIN = """
controllers:
  - {name: high, triggers: [on_step_end], rule: "loss > mean(loss, 3)", operations: [hfcontrols.should_log]}
  - {name: stop, triggers: [on_step_end], rule: loss > 8, operations: [hfcontrols.should_training_stop]}
"""


def spans(folder: Path) -> list[Event]:
    """Return the spans of a run."""
    return [event for event in open_run(folder).events() if event.kind == "span"]


def names(folder: Path) -> list[str]:
    """Return the names of a run's spans, in order."""
    return [event.attrs["name"] for event in spans(folder)]


def test_a_span_is_recorded_at_its_end_with_its_duration(tmp_path: Path) -> None:
    """It has the loop's step, and began that long before its event."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        with rec.span("eval"):
            rec.evaluate(eval_loss=2.0)
    (event,) = spans(rec.folder)

    assert list(event.metrics) == ["Time/eval_seconds"]
    assert (event.step, sorted(event.attrs)) == (1, ["began_ns", "name"])
    seconds = event.metrics["Time/eval_seconds"]
    assert 0 < event.attrs["began_ns"] <= event.elapsed_ns - seconds * 1e9
    assert [each.kind for each in open_run(rec.folder).events()][-3:] == ["evaluate", "span", "train_end"]


def test_a_span_counts_no_step(tmp_path: Path) -> None:
    """The next step has the number that it would have without it."""
    with Recorder(tmp_path) as rec:
        with rec.span("warm up"):
            rec.step(loss=1.0)
        rec.step(loss=1.0)

        assert rec.progress.updates == 2
    assert [(event.step, event.attrs["name"]) for event in spans(rec.folder)] == [(1, "warm up")]


def test_an_exception_that_leaves_a_span_is_named_and_passed_on(tmp_path: Path) -> None:
    """The checkpoint has failed; one that was written has not."""
    with Recorder(tmp_path) as rec:
        with contextlib.suppress(OSError), rec.span("checkpoint"):
            raise FileNotFoundError("disk")
        with rec.span("checkpoint"):
            pass
    failed, written = spans(rec.folder)

    assert (failed.attrs["failed"], failed.metrics["Checkpoint/ok"]) == ("FileNotFoundError", 0.0)
    assert ("failed" in written.attrs, written.metrics["Checkpoint/ok"]) == (False, 1.0)


def test_a_span_that_cannot_be_recorded_does_not_replace_the_loops_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even with ``strict``: its own failure is logged."""
    rec = Recorder(tmp_path, strict=True)

    def evaluate() -> None:
        with rec.span("eval"):
            rec.close()
            raise KeyError("of the loop")

    with pytest.raises(KeyError):
        evaluate()

    assert "the span 'eval' could not be recorded" in caplog.text


def test_nested_spans_are_recorded_inner_first_and_counted_once(tmp_path: Path) -> None:
    """The total is that of the outer one."""
    with Recorder(tmp_path) as rec:
        before = rec._live.spans.total_ns()
        with rec.span("eval"):
            with rec.span("load"):
                pass
            open_total = rec._live.spans.total_ns()
        total = rec._live.spans.total_ns()
        after = rec._live.spans.total_ns()
    inner, outer = spans(rec.folder)

    assert (inner.attrs["name"], outer.attrs["name"]) == ("load", "eval")
    assert before == 0 < open_total <= total == after
    assert total == round(outer.metrics["Time/eval_seconds"] * 1e9)


def test_each_thread_has_spans_of_its_own(tmp_path: Path) -> None:
    """What another thread does is no pause of the training's."""
    with Recorder(tmp_path) as rec:

        def evaluate() -> None:
            with rec.span("background"):
                totals.append(rec._live.spans.total_ns())

        totals: list[int] = []
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()

        assert totals[0] > 0 == rec._live.spans.total_ns()
    assert names(rec.folder) == ["background"]


def test_spans_that_overlap_in_one_thread_count_their_union(tmp_path: Path) -> None:
    """Coroutines end them in any order."""

    async def phase(name: str, begun: asyncio.Event, ends: asyncio.Event) -> None:
        with rec.span(name):
            begun.set()
            await ends.wait()

    async def both() -> None:
        begun, second = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(phase("first", begun, second))
        await begun.wait()
        await phase("second", second, begun)
        await first

    with Recorder(tmp_path) as rec:
        asyncio.run(both())
        total = rec._live.spans.total_ns()
    events = {event.attrs["name"]: event for event in spans(rec.folder)}
    began = min(event.attrs["began_ns"] for event in events.values())
    ends = [
        event.attrs["began_ns"] + round(event.metrics[f"Time/{name}_seconds"] * 1e9) for name, event in events.items()
    ]

    assert total == max(ends) - began


@pytest.mark.parametrize("name", ["", " ", "eval/val", "a\nb", "x" * 65, 3, None, "step", "data_wait"])
def test_a_wrong_name_is_objected_to_and_the_block_runs(
    tmp_path: Path, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``strict`` the call raises."""
    with Recorder(tmp_path) as rec:
        with rec.span(name):
            rec.step(loss=1.0)
        with rec.span(name):
            rec.step(loss=1.0)

    assert spans(rec.folder) == []
    assert caplog.text.count("span: ") == 1
    assert open_run(rec.folder).progress().updates == 2
    with Recorder(tmp_path, strict=True) as rec, pytest.raises(TelemetryError, match="span"):
        rec.span(name)


def test_names_that_number_repetitions_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each is a column of the run's tables."""
    with Recorder(tmp_path) as rec:
        for number in range(150):
            with rec.span(f"eval {number}"):
                pass

    assert caplog.text.count("names of spans") == 1
    assert len(spans(rec.folder)) == 150


def test_a_span_of_a_closed_recorder_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run has ended, so the block runs unrecorded."""
    rec = Recorder(tmp_path)
    with rec.span("eval"):
        rec.close()

    assert "has ended" in caplog.text
    assert spans(rec.folder) == []


def test_a_disabled_recorder_has_spans_too(tmp_path: Path) -> None:
    """They record nothing, and export what a profiler made."""
    rec = Recorder(tmp_path, mode="disabled")
    with rec.span("eval") as span, torch.profiler.profile(on_trace_ready=span.export_to(tmp_path / "trace.json")):
        span.trace("x.json")

    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_process_that_dies_within_a_span_leaves_none(tmp_path: Path) -> None:
    """What it recorded within the span stays."""
    program = """
import os, signal, sys
from steptape import Recorder

rec = Recorder(sys.argv[1], run_id="died")
with rec.span("eval"):
    rec.step(loss=1.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=PATIENCE_S)

    assert died.returncode == -signal.SIGKILL
    assert [event.kind for event in open_run(tmp_path / "died").events()] == ["train_begin", "step_end"]


def test_a_forked_child_ends_no_span_of_its_parent(tmp_path: Path) -> None:
    """The parent's is recorded once."""
    with Recorder(tmp_path) as rec, rec.span("eval"):
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException), rec.span("child"):
                pass
            os._exit(0)
        os.waitpid(child, 0)

    assert names(rec.folder) == ["eval"]


def test_a_span_around_a_rollback_is_recorded_in_the_attempt_that_follows(tmp_path: Path) -> None:
    """It began before that attempt did."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        "controllers:\n  - {name: back, triggers: [on_step_end], rule: loss > 5, once: true, "
        "operations: ['rollback.to(\"last\")']}\n"
    )
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        rec.handle("rollback.to", lambda _: None)
        rec.step(loss=1.0)
        rec.save("one", size_bytes=1)
        with rec.span("phase"):
            rec.step(loss=9.0)
        total = rec._live.spans.total_ns()
    (event,) = spans(rec.folder)

    assert (event.attempt, event.step) == (1, 1)
    assert event.attrs["began_ns"] < 0 < total


def test_a_checkpoint_may_be_loaded_within_a_span(tmp_path: Path) -> None:
    """Spans are no events that a resume would lose."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    with Recorder(tmp_path) as rec:
        with rec.span("build"):
            pass
        with rec.span("load"):
            rec.load_state_dict(state)
        rec.step(loss=1.0)

    assert [(event.attempt, event.attrs["name"]) for event in spans(rec.folder)] == [(1, "load")]


def test_rules_judge_spans_live_as_in_replay(tmp_path: Path) -> None:
    """The trigger is ``on_span``; a series of a span is read like another."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(SLOW)
    saves, stops = [], []
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        for step in range(1, 5):
            rec.step(loss=1.0)
            with rec.span("eval"):
                pass
            saves += [step] if rec.control.should_save else []
            rec.save("one", size_bytes=1)
            with contextlib.suppress(OSError), rec.span("checkpoint"):
                if step == 4:
                    raise OSError
            stops += [step] if rec.control.should_stop else []
    run = open_run(rec.folder)

    assert verify(run).identical
    assert (saves, stops) == ([2, 3, 4], [4])
    assert [judged.event for judged in replay(load_policy(rules), run).outcomes if judged.event != "span"] == []


def test_spans_and_samples_between_steps_change_no_decision_of_other_rules(tmp_path: Path) -> None:
    """Neither do they force late values to arrive."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(PLAIN)
    losses = [1.0, 5.0, 1.0, 1.0, 9.0, 2.0]

    def decisions(folder: Path, *, has_spans: bool) -> list[tuple[str, int, int]]:
        with Recorder(folder, rules=rules) as rec:
            for step, loss in enumerate(losses, start=1):
                with rec.span("forward") if has_spans else contextlib.nullcontext():
                    rec.step(awaits=["loss"])
                if step > 2:
                    rec.late(step - 2, loss=losses[step - 3])
                with rec.span("rest") if has_spans else contextlib.nullcontext():
                    rec.log(other=loss)
        run = open_run(rec.folder)
        assert verify(run).identical
        made = [event for event in run.events() if event.kind == "decision"]
        return [(event.attrs["controller"], event.step, event.value_lag) for event in made]

    plain = decisions(tmp_path / "plain", has_spans=False)

    assert plain == decisions(tmp_path / "spans", has_spans=True)
    assert [name for name, _, _ in plain] == ["high"]


def test_a_trace_is_linked_and_has_a_range_of_the_spans_name(tmp_path: Path) -> None:
    """``on_trace_ready`` writes it, or the loop does and gives its path."""
    path = tmp_path / "trace.json"
    with Recorder(tmp_path / "runs") as rec:
        with (
            rec.span("profile") as span,
            torch.profiler.profile(on_trace_ready=span.export_to(path)) as profiler,
            rec.span("inner", profiler=profiler),
        ):
            torch.ones(3).sum()
        with rec.span("other") as other:
            other.trace(tmp_path / "other.json")
    linked = {event.attrs["name"]: event.attrs.get("trace") for event in spans(rec.folder)}
    ranges = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}

    assert linked == {"inner": None, "profile": str(path), "other": str(tmp_path / "other.json")}
    assert "inner" in ranges


def test_a_span_is_no_kind_for_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its call is named."""
    with Recorder(tmp_path) as rec:
        rec.event("span", {"Time/eval_seconds": 1.0})

    assert "rec.span(name)" in caplog.text
    assert spans(rec.folder) == []


def test_a_recorder_steps_as_before_once_it_has_had_a_span(tmp_path: Path) -> None:
    """The fast path of a step is not left."""
    with Recorder(tmp_path) as rec:
        with rec.span("eval"):
            pass
        quick = rec.step
        rec.step(loss=1.0)

        assert rec.step is quick
    assert names(rec.folder) == ["eval"]

"""Calls that record something other than the loop means are warned of once; with ``strict`` they raise."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from command_line import call as steptape

from steptape import Recorder, TelemetryError, open_run, open_store
from steptape.store.events import Event
from steptape.store.run import Run
from steptape.store.run_info import write_run_info

Call = Callable[[Any], object]


def recorded(store: Path, *calls: Call, **arguments: Any) -> list[Event]:
    """Record these calls and return the run's events between its begin and its end."""
    with Recorder(store, **arguments) as rec:
        for call in calls:
            call(rec)
    return list(open_run(rec.folder).events())[1:-1]


def step(**values: Any) -> Call:
    """A call of ``step`` with these values."""
    return lambda rec: rec.step(**values)


WRONG: dict[str, tuple[list[Call], str]] = {
    "a number as text": ([step(loss="1.5")], "'loss' is text that reads like a number; got '1.5'"),
    "a loss as text": ([step(loss="abc")], "'loss' is text where a number is expected; got 'abc'"),
    "text after a number": ([step(phase=1.0), step(phase="a")], "'phase' is text, and was a number before"),
    "a number as text in log": ([step(x=1.0), lambda rec: rec.log(y="2")], "'y' is text that reads like a number"),
    "log alone": ([lambda rec: rec.log(loss=1.0)], "log does not count steps; rec.step does"),
    "a step again": ([step(step=5, loss=1.0), step(step=5, lr=1.0)], "step 5 follows step 5"),
    "a step back": ([step(step=n, loss=1.0) for n in (3, 4, 5, 1, 2)], "step 1 follows step 5"),
    "tokens alone": ([step(loss=1.0, sample_tokens=[1])], "sample_tokens are recorded only with samples"),
    "token losses alone": ([step(loss=1.0, token_losses=[[1.0]])], "token_losses are recorded only with samples"),
    "a metric twice": ([lambda rec: rec.step({"loss": 1.0}, loss=2.0)], "'loss' is given twice in one call"),
    "a metric twice, nested": ([lambda rec: rec.step({"a": {"b": 1.0}, "a/b": 2.0})], "'a/b' is given twice"),
    "an evaluation twice": ([lambda rec: rec.evaluate({"x": 1.0}, x=2.0)], "'x' is given twice in one call"),
    "an integer between two floats": (
        [step(total_flos=10**23)],
        "'total_flos' is an integer that no float holds exactly",
    ),
    "such a numpy integer": ([step(flos=np.uint64(2**63 + 1))], "'flos' is an integer that no float holds exactly"),
    "an integer beyond all floats": ([step(flos=10**400)], "'flos' is an integer beyond all floats"),
    "a masked value": ([step(loss=np.ma.masked)], "'loss' is masked"),
    "a masked array": ([step(loss=np.ma.masked_array([1.0], [True]))], "'loss' is masked"),
    "an incident nowhere": (
        [step(loss=1.0), lambda rec: rec.annotate("bad", incident="spike")],
        "an incident without first_step and last_step counts in no backtest",
    ),
    "an incident backwards": (
        [step(loss=1.0), lambda rec: rec.annotate("bad", incident="spike", first_step=120, last_step=90)],
        "an incident that ends before it begins counts in no backtest; got (120, 90)",
    ),
    "an incident in words": (
        [step(loss=1.0), lambda rec: rec.annotate("bad", incident="spike", first_step="abc")],
        "an incident whose steps are no whole numbers counts in no backtest; got 'abc'",
    ),
    "an evaluation as a step": (
        [step(loss=1.0), step(**{"eval_loss": 0.5, "val/acc": 0.9})],
        "a step counts an update, but this one has only 'eval_loss', 'val/acc'. Record them with evaluate(...)",
    ),
    "a step among the values": (
        [lambda rec: rec.step({"loss": 1.0, "step": 7})],
        "'step' is a metric here: step takes its number as an argument. Write rec.step(values, step=...)",
    ),
    "a step among the values of log": (
        [step(loss=1.0), lambda rec: rec.log({"lr": 1.0, "step": 7})],
        "'step' is a metric here: log has no such argument, and records at the current step",
    ),
    "a list": ([step(loss=[1.0, 2.0])], "'loss' is not a number but a list"),
    "a tensor of two": ([step(loss=torch.ones(2))], "'loss' is not a number but a Tensor of shape (2,)"),
}


@pytest.mark.parametrize(("calls", "message"), WRONG.values(), ids=WRONG)
def test_a_call_that_records_something_else_is_warned_of_once(
    tmp_path: Path, calls: list[Call], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same calls again add no warning, and all events are kept."""
    events = recorded(tmp_path, *calls, *calls)

    assert [record for record in caplog.messages if message in record] == caplog.messages[:1]
    assert len(caplog.messages) == 1
    assert len(events) == 2 * len(calls)


@pytest.mark.parametrize(("calls", "message"), WRONG.values(), ids=WRONG)
def test_strict_raises_at_a_call_that_would_record_something_else(
    tmp_path: Path, calls: list[Call], message: str
) -> None:
    """The error is one of steptape's own, with the same words, and does not speak of recording what it refuses."""
    with pytest.raises(TelemetryError) as caught:
        recorded(tmp_path, *calls, strict=True)

    assert message in str(caught.value)
    assert not re.search(r"; [^.]*recorded", str(caught.value))


RIGHT: dict[str, list[Call]] = {
    "text that is none of a number": [step(loss=1.0, phase="warmup"), step(loss=1.0, phase="decay")],
    "steps from 0": [step(step=n, loss=1.0) for n in range(3)],
    "steps with gaps": [step(step=n, loss=1.0) for n in (10, 20, 30)],
    "log after a step": [step(loss=1.0), lambda rec: rec.log(lr=0.1)],
    "samples that are None": [step(loss=1.0, samples=None, sample_ids=None)],
    "a mapping and keywords": [lambda rec: rec.step({"loss": 1.0}, lr=0.1)],
    "None after a number": [step(loss=1.0), step(loss=None)],
    "integers up to 2**53": [step(tokens=2**53), step(tokens=-(2**53))],
    "integers that floats hold": [
        step(loss=2**62),
        step(loss=2**70),
        step(loss=-(10**20)),
        step(loss=np.uint64(2**63)),
    ],
    "an incident up to now": [step(loss=1.0, step=9), lambda rec: rec.annotate("x", incident="y", first_step=5)],
    "an incident of numpy's steps": [
        lambda rec: rec.annotate("x", incident="y", first_step=np.int64(5), last_step=np.float64(7))
    ],
    "a note of a step": [lambda rec: rec.annotate("x", first_step="abc")],
    "an evaluation within a step": [step(loss=1.0, eval_loss=0.5), step(loss=1.0), step(loss=1.0, eval_loss=0.5)],
    "a step without values": [step()],
    "a name that only begins so": [step(values=1.0), step(evaluated_tokens=3)],
    "an array that masks nothing": [step(loss=np.ma.masked_array([1.0], [False]))],
}


@pytest.mark.parametrize("calls", RIGHT.values(), ids=RIGHT)
def test_an_ordinary_call_warns_of_nothing(tmp_path: Path, calls: list[Call], caplog: pytest.LogCaptureFixture) -> None:
    """It passes with ``strict`` too."""
    recorded(tmp_path, *calls, strict=True)

    assert caplog.messages == []


def test_a_loop_with_a_new_name_at_each_step_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each step is recorded nevertheless."""
    with Recorder(tmp_path, quiet=True) as rec:
        for step in range(1100):
            rec.step({f"task_{step}/acc": 0.5})

    warnings = [record for record in caplog.records if "different sets of metric names" in record.getMessage()]
    assert len(warnings) == 1
    assert len(open_run(rec.folder).sql("SELECT step FROM all_events WHERE kind = 'step_end'")) == 1100


def test_what_a_wrong_call_recorded_before_it_still_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Warnings change no data, except that a masked value is no number."""
    events = recorded(
        tmp_path,
        step(loss="1.5", lr=0.1),
        step(loss=np.ma.masked, lr=0.2),
        lambda rec: rec.step({"loss": 1.0}, loss=2.0),
        step(step=1, total_flos=10**23),
    )

    assert [event.step for event in events] == [1, 2, 3, 1]
    assert [event.metrics for event in events] == [{"lr": 0.1}, {"lr": 0.2}, {"loss": 2.0}, {"total_flos": 1e23}]
    assert [event.attrs for event in events] == [{"loss": "1.5"}, {}, {}, {}]
    assert len(caplog.messages) == 5


def test_text_for_a_name_that_rules_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rule reads numbers only."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("controllers: [{name: e, triggers: [on_step_end], rule: quality > 3, operations: []}]")

    recorded(tmp_path / "runs", step(quality="good"), step(quality="bad"), rules=rules)

    assert [message for message in caplog.messages if "text" in message] == [
        "'quality' is text, and rules read it as a number; got 'good'. Give it as a number"
    ]


def test_a_step_after_a_resume_may_repeat_the_last_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that resumes trains the updates after its checkpoint again."""
    with Recorder(tmp_path) as rec:
        rec.step(step=4, loss=1.0)
        rec.save(__file__)
    with Recorder(tmp_path, resume=rec.run_id) as again:
        again.step(step=4, loss=1.0)
        again.step(step=5, loss=1.0)

    assert caplog.messages == []


@pytest.mark.parametrize("is_strict", [False, True])
def test_steps_that_begin_again_after_a_resume_are_warned_of_once(
    tmp_path: Path, is_strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The updates before the checkpoint would count twice."""
    with Recorder(tmp_path) as rec:
        for number in range(1, 8):
            rec.step(step=number, loss=1.0)
        state = rec.state_dict()
    expected = pytest.raises(TelemetryError, match="step 1 follows step 7") if is_strict else contextlib.nullcontext()
    with expected, Recorder(tmp_path, resume=state, strict=is_strict) as again:
        for number in (1, 2, 3):
            again.step(step=number, loss=1.0)

    message = (
        "step 1 follows step 7, from which this attempt resumes: step numbers repeat or go backwards; recorded as "
        "given. Count on from the checkpoint, or resume from an earlier one with resume=(run_id, step)"
    )
    assert caplog.messages == ([] if is_strict else [message])


def test_a_first_step_0_of_a_planned_run_is_warned_of_with_the_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``enumerate`` counts from 0, so the run would end one step before its plan."""
    with Recorder(tmp_path, total_steps=3) as rec:
        for number in range(3):
            rec.step(step=number, loss=1.0)

    assert caplog.messages == [
        "the first step is 0, but step counts finished updates: a loop of 3 updates then ends at step 2, and counts as "
        "shorter than planned. Write step=i + 1, or leave step= out"
    ]
    with Recorder(tmp_path, total_steps=3, strict=True) as rec, pytest.raises(TelemetryError, match="first step is 0"):
        rec.step(step=0, loss=1.0)


ON_EVALUATE = "controllers: [{name: over, triggers: [on_evaluate], rule: eval_loss > loss, operations: []}]"


@pytest.mark.parametrize("value", [2.0, torch.tensor(2.0)], ids=["float", "tensor"])
def test_an_evaluation_within_a_step_is_warned_of_if_rules_await_it(
    tmp_path: Path, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It triggers no rule on ``on_evaluate``; the other values of the step are in order."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(ON_EVALUATE)
    calls = [step(loss=1.0), step(loss=1.0, eval_loss=value), step(loss=1.0, eval_loss=value)]
    message = (
        "'eval_loss' is given to step, but rules read it at on_evaluate, which step does not trigger. "
        "Record it with evaluate(...)"
    )

    recorded(tmp_path / "runs", *calls, rules=rules)
    with pytest.raises(TelemetryError, match="rules read it at on_evaluate"):
        recorded(tmp_path / "strict", *calls, rules=rules, strict=True)

    assert caplog.messages.count(message) == 1


def test_an_evaluation_that_is_given_to_a_step_once_more_is_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Loops repeat the latest evaluation beside the loss; the rules have seen it."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(ON_EVALUATE)

    def evaluated(rec: Any) -> None:
        rec.evaluate(eval_loss=1.0)

    recorded(tmp_path / "runs", step(loss=1.0), evaluated, step(loss=1.0, eval_loss=1.0), rules=rules, strict=True)

    assert caplog.messages == []


def test_a_metric_that_cannot_be_copied_costs_itself_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tensor on torch's ``meta`` device has no value, beside one that has."""
    bad = torch.ones((), device="meta")

    steps = [event for event in recorded(tmp_path, *[step(loss=1.0, bad=bad)] * 4) if event.kind != "gap"]

    assert [event.metrics for event in steps if "late_for" not in event.attrs] == [{"loss": 1.0}] * 4
    assert len(steps) == 8
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "metric 'bad' could not be read (NotImplementedError: Cannot copy out of meta tensor"
    ]


@pytest.mark.parametrize("path", ["missing.pt", "s3://bucket/model.pt", "/dev/null"])
def test_a_checkpoint_of_unknown_size_is_said_once(tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may be elsewhere; the loop can give the size."""
    recorded(tmp_path, step(loss=1.0), *[lambda rec: rec.save(path)] * 2, strict=True)

    what = "save: the size of the checkpoint is unknown, because its path is neither a file nor a folder"
    assert caplog.messages == [f"{what}; got {path!r}. Give size_bytes= if you know it"]


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sharded checkpoints are folders. A link counts as itself, so that a loop of links ends."""
    folder = tmp_path / "checkpoint"
    (folder / "shards").mkdir(parents=True)
    (folder / "model.json").write_bytes(b"x" * 10)
    (folder / "shards" / "1.pt").write_bytes(b"x" * 1000)
    (folder / "shards" / "again").symlink_to(folder)

    (event,) = recorded(tmp_path / "runs", lambda rec: rec.save(folder), strict=True)

    assert (event.attrs["size_bytes"], caplog.messages) == (1010, [])


MISCALLED: dict[str, tuple[Call, str]] = {
    "step(1.0)": (lambda rec: rec.step(1.0), "step takes values by name; got 1.0. Write step(loss=1.0)"),
    "evaluate(0.5)": (lambda rec: rec.evaluate(0.5), "evaluate takes values by name; got 0.5. Write evaluate(loss=0.5"),
    "log(0.5)": (lambda rec: rec.log(0.5), "log takes values by name; got 0.5. Write log(loss=0.5)"),
    "step(5, {...})": (lambda rec: rec.step(5, {"loss": 1.0}), "got (5, {'loss': 1.0}). Write step({...}, step=5)"),
    "step({...}, 5)": (lambda rec: rec.step({"loss": 1.0}, 5), "got ({'loss': 1.0}, 5). Write step({...}, step=5)"),
    "log({...}, 5)": (lambda rec: rec.log({"loss": 1.0}, 5), "got ({'loss': 1.0}, 5). Write step({...}, step=5)"),
}


@pytest.mark.parametrize(("call", "message"), MISCALLED.values(), ids=MISCALLED)
def test_a_miscall_is_answered_with_the_call_to_use(
    tmp_path: Path, call: Call, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs its event, which is counted, and never ends the loop, on the fast path as on the general one."""
    good = step(loss=1.0)

    events = recorded(tmp_path, good, good, call, call, good)

    assert len([text for text in caplog.messages if message in text]) == 1
    assert [event.attrs["lost_events"] for event in events if event.kind == "gap"] == [2]
    assert [event.metrics for event in events if event.kind == "step_end"] == [{"loss": 1.0}] * 3
    with pytest.raises(TelemetryError) as caught:
        recorded(tmp_path, good, call, strict=True)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"project": "x"}, "Recorder takes no argument 'project'. Use group= for related runs, name= for this one"),
        ({"entity": "x"}, "Recorder takes no argument 'entity'. Use group="),
        ({"id": "x"}, "Recorder takes no argument 'id'. Use run_id="),
        ({"samples_every": 2}, "Recorder takes no argument 'samples_every'. Write samples=Samples(every=2)"),
        ({"on_save": print}, "Recorder takes no argument 'on_save'. Write callbacks={'save': function}"),
        ({"constants": {"n": 1}}, "Recorder takes no argument 'constants'. Write plan=Plan(constants={'n': 1})"),
        ({"resume_step": 3}, "Recorder takes no argument 'resume_step'. Write resume=(run_id, 3)"),
        ({"total_step": 5}, "Recorder takes no argument 'total_step'. Did you mean 'total_steps'?"),
    ],
    ids=lambda argument: next(iter(argument)) if isinstance(argument, dict) else "",
)
def test_a_constructor_argument_of_another_tool_or_an_earlier_one_is_answered_with_steptape_s(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """Nothing is written."""
    with pytest.raises(TypeError) as caught:
        Recorder(tmp_path / "runs", **arguments)

    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("finish", "Recorder has no 'finish'. Use close()"),
        ("log_metrics", "Recorder has no 'log_metrics'. Use step(...) for an update, log(...) for other values"),
        ("closed", "Recorder has no 'closed'. Did you mean 'close'?"),
    ],
)
def test_a_method_of_another_tool_is_answered_with_steptape_s(tmp_path: Path, method: str, message: str) -> None:
    """It is an ``AttributeError``, so that ``hasattr`` and ``copy`` work as on any object."""
    with Recorder(tmp_path) as rec, pytest.raises(AttributeError) as caught:
        getattr(rec, method)

    assert message in str(caught.value)
    assert not hasattr(rec, method)


@pytest.mark.parametrize(
    "store", ["ftp://127.0.0.1:8431", "s3://bucket/runs", "file:///tmp/runs", "", " ", None, 5, Path("s3://bucket")]
)
def test_a_store_that_is_no_folder_is_refused_before_anything_is_written(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address became a folder named ``http:``, and an empty store the current folder."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(TelemetryError, match="the store must be the path of a folder; got"):
        Recorder(store)

    assert list(tmp_path.iterdir()) == []


def test_a_store_in_the_home_folder_may_be_written_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell replaces it, Python does not: runs went to a folder named ``~``. It reads the same way."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    with Recorder("~/runs") as rec, Recorder(Path("~") / "runs") as other:
        pass

    assert {rec.folder.parent, other.folder.parent} == {tmp_path / "home" / "runs"}
    assert len(list(open_store("~/runs"))) == 2
    assert open_run(f"~/runs/{rec.run_id}").info.run_id == rec.run_id
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("rules", [{"controllers": []}, [1], [], 5, ""])
def test_rules_of_another_type_are_refused_with_what_is_taken(tmp_path: Path, rules: Any) -> None:
    """A mapping is the content of a file, which the recorder does not take."""
    with pytest.raises(
        TelemetryError, match="rules must be sentences, a rule file, the name of a shipped one or a Policy"
    ):
        Recorder(tmp_path / "runs", rules=rules)

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("ids", ["ab", b"ab"])
def test_text_as_sample_ids_is_answered_in_words_of_ours(
    tmp_path: Path, ids: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A library's message about typecodes helps nobody."""
    recorded(tmp_path, step(loss=1.0, samples=[1.0, 2.0], sample_ids=ids))

    (message,) = caplog.messages
    assert message.startswith("sample losses were not recorded: sample_ids must be a one-dimensional sequence")
    assert "typecode" not in message


def test_masked_sample_losses_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bytes behind a mask are no losses."""
    masked = np.ma.masked_array([1.0, 2.0], [False, True])

    recorded(tmp_path, step(loss=1.0, samples=masked))

    assert "samples must be a one-dimensional sequence of numbers (some are masked)" in caplog.text
    (folder,) = tmp_path.iterdir()
    assert open_run(folder).samples().num_rows == 0


def test_shipped_policies_are_taken_by_name(tmp_path: Path) -> None:
    """The command line takes them so too."""
    with Recorder(tmp_path, rules="loss_spike") as rec:
        rec.step(loss=1.0)

    policy = open_run(rec.folder).info.last.policy
    assert policy is not None
    assert policy.source.endswith("loss_spike.yaml")


def test_a_misspelt_policy_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(TelemetryError, match=r"steptape ships no rules of that name\. Did you mean 'loss_spike'"):
        Recorder(tmp_path / "runs", rules="los_spike")

    assert not (tmp_path / "runs").exists()


def test_a_recorder_without_rules_loads_none_of_the_rule_engine(tmp_path: Path) -> None:
    """The first run, a resumed one and the end of both do without it."""
    program = """
        import sys
        from steptape import Recorder
        with Recorder(sys.argv[1]) as rec:
            rec.step(loss=1.0)
            state = rec.state_dict()
        with Recorder(sys.argv[1], resume=state) as rec:
            rec.step(loss=1.0)
        print([name for name in sys.modules if name.startswith("steptape.rules")])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]

    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"


def test_ctrl_c_in_asyncio_ends_a_run_as_interrupted(tmp_path: Path) -> None:
    """``asyncio.run`` cancels its main task, and raises ``KeyboardInterrupt`` only afterwards."""
    program = """
        import asyncio, sys
        from steptape import Recorder
        async def train():
            with Recorder(sys.argv[1]) as rec:
                rec.step(loss=1.0)
                print("ready", flush=True)
                await asyncio.sleep(600)
        asyncio.run(train())
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)

    (folder,) = tmp_path.iterdir()
    assert open_run(folder).status == "interrupted"


def test_a_task_that_is_cancelled_by_another_ends_its_run_as_failed(tmp_path: Path) -> None:
    """Nobody pressed Ctrl-C."""
    program = """
        import asyncio, sys
        from steptape import Recorder
        async def train():
            with Recorder(sys.argv[1]) as rec:
                rec.step(loss=1.0)
                await asyncio.sleep(600)
        async def main():
            task = asyncio.create_task(train())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True)

    (folder,) = tmp_path.iterdir()
    assert open_run(folder).status == "failed"


def failed_run(store: Path, program: str) -> Run:
    """Record a run that this body of its ``with`` block ends with an exception."""
    head = "import sys\nfrom steptape import Recorder\nwith Recorder(sys.argv[1], name='bad') as rec:\n"
    path = store.parent / "train.py"
    path.write_text(head + textwrap.indent(textwrap.dedent(program), "    "))
    subprocess.run([sys.executable, str(path), str(store)], capture_output=True, check=False)
    (folder,) = store.iterdir()
    return open_run(folder)


def test_a_traceback_keeps_causes_and_no_secrets(tmp_path: Path) -> None:
    """Code lines are part of a traceback, and secrets in code are redacted as in configurations."""
    run = failed_run(
        tmp_path / "runs",
        """
        def login(user, api_key):
            raise KeyError(user)
        try:
            login("me", api_key="sk-123")
        except KeyError as error:
            raise RuntimeError("no data") from error
        """,
    )

    assert run.info.last.failure is not None
    text = run.info.last.failure["traceback"]
    assert 'login("me", api_key="[redacted]")' in text
    assert "KeyError: 'me'" in text
    assert text.endswith("RuntimeError: no data")
    assert "sk-123" not in text


def test_a_long_traceback_is_bounded(tmp_path: Path) -> None:
    """The innermost frames are kept, and the text is cut in the middle."""
    run = failed_run(
        tmp_path / "runs",
        """
        def deeper(n):
            return deeper(n - 1) if n else 1 / 0
        try:
            deeper(50)
        except ZeroDivisionError as error:
            raise ValueError("x" * 100_000) from error
        """,
    )

    assert run.info.last.failure is not None
    text = run.info.last.failure["traceback"]
    assert len(text) <= 8_000
    assert text.count("in deeper") <= 12
    assert text.startswith("Traceback (most recent call last):")


def test_show_prints_the_traceback_of_a_failed_run_and_does_without_where_there_is_none(tmp_path: Path) -> None:
    """Imported runs may have type and message only."""
    run = failed_run(tmp_path / "runs", "raise ValueError('no data')")

    def shown() -> list[str]:
        return steptape("show", run.folder).stdout.splitlines()

    new = shown()
    info = run.info
    assert info.last.failure is not None
    older = {key: value for key, value in info.last.failure.items() if key != "traceback"}
    last = dataclasses.replace(info.last, failure=older)
    write_run_info(run.folder, dataclasses.replace(info, attempts=(last,)))
    old = shown()

    begin = new.index("  Traceback (most recent call last):")
    assert new[1] == "Failed before its first step: ValueError: no data. Last checkpoint: none."
    assert new[begin + 3] == "  ValueError: no data"
    assert old == new[:begin] + new[begin + 4 :]


def printed(program: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a program as a user does and return its stderr."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "STEPTAPE_QUIET"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**variables, **environment}).stderr


LOOP = """
    import sys
    from steptape import Ranks, Recorder
    with Recorder(sys.argv[1], name="one") as rec:
        for step in range(1, 51):
            rec.step(loss=1 / step, lr=0.1)
        rec.evaluate(eval_loss=0.5, a=1, b=2)
"""


def test_a_line_at_the_start_and_one_at_the_end_say_where_the_run_is_and_how_it_ended(tmp_path: Path) -> None:
    """The last line holds the last values, of the fast path's steps too."""
    first, last = printed(LOOP, str(tmp_path)).splitlines()
    (folder,) = tmp_path.iterdir()

    look = f"To look at it: steptape show {folder}"
    assert first == f"steptape: recording 'one'. {look}"
    assert last == f"steptape: 'one' completed after 50 steps: loss 0.02, lr 0.1, eval_loss 0.5, a 1 and 1 more. {look}"


def test_the_lines_name_a_failed_run_and_a_run_without_steps(tmp_path: Path) -> None:
    """The exception of the loop follows, as without a recorder."""
    program = """
        import sys
        from steptape import Recorder
        try:
            with Recorder(sys.argv[1], name="a b") as rec:
                raise ValueError
        except ValueError:
            pass
    """
    lines = printed(program, str(tmp_path / "my runs")).splitlines()

    assert lines[1].startswith("steptape: 'a b' failed after 0 steps. To look at it: steptape show '")


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [("quiet=True", {}), ("", {"STEPTAPE_QUIET": "1"}), ("ranks=Ranks(rank=1), run_id='x'", {})],
    ids=["quiet", "variable", "rank 1"],
)
def test_the_lines_can_be_silenced_and_other_ranks_print_none(
    tmp_path: Path, arguments: str, environment: dict[str, str]
) -> None:
    """One process of a job prints."""
    loop = LOOP.replace('name="one"', f'name="one", {arguments}')

    assert "To look at it" not in printed(loop, str(tmp_path), environment=environment)


@pytest.mark.parametrize("value", ["", "0", "false", "False", "no", "off"])
def test_the_variable_that_silences_the_lines_may_say_no(tmp_path: Path, value: str) -> None:
    """Environment variables are text."""
    assert "To look at it" in printed(LOOP, str(tmp_path), environment={"STEPTAPE_QUIET": value})


def test_the_lines_do_without_a_standard_error(tmp_path: Path) -> None:
    """Daemons close it, before or during the run."""
    loop = textwrap.dedent(LOOP)
    for begin in ("sys.stderr = None", "sys.stderr.close()"):
        printed(f"import sys\n{begin}\n{loop}", str(tmp_path))

    assert [open_run(folder).status for folder in tmp_path.iterdir()] == ["completed"] * 2


def test_a_rule_whose_series_never_came_is_named_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Too few evaluations for the warning during the run: one line for the series, with the metric that is meant."""
    with Recorder(tmp_path, rules="overfitting") as rec:
        rec.step(loss=1.0)
        rec.evaluate(val_loss=2.0)

    (line,) = [record.message for record in caplog.records if "has carried this series" in record.message]
    assert "in this run; got 'eval_loss'. Did you mean 'val_loss'?" in line
    assert line.startswith("controllers 'save_best', 'stop_overfitting'")


def test_rules_whose_series_came_say_nothing_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor do rules of a run without any metric."""
    with Recorder(tmp_path, rules="overfitting") as rec:
        rec.step(loss=1.0)
        rec.evaluate(eval_loss=2.0)

    assert "has carried this series" not in caplog.text


@pytest.mark.parametrize("method", ["evaluate", "log"])
def test_a_step_given_to_another_call_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The value is a metric there, and stays one."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        getattr(rec, method)(accuracy=0.5, step=7)

    assert f"'step' is a metric here: {method} has no such argument" in caplog.text
    assert open_run(rec.folder).series("step")["value"].to_pylist() == [7.0]


def test_the_last_line_counts_the_events_that_were_lost(tmp_path: Path) -> None:
    """A wrong call records nothing."""
    script = """
import sys
from steptape import Recorder
with Recorder(sys.argv[1]) as rec:
    rec.step(1.0)
    rec.step(loss=2.0)
"""
    environment = {**os.environ, "STEPTAPE_QUIET": "0"}
    done = subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, capture_output=True, text=True)

    assert "loss 2. 1 event could not be recorded. To look at it" in done.stderr.splitlines()[-1]


def test_a_forked_child_that_records_is_told_whose_run_it_is(tmp_path: Path) -> None:
    """The child's call is not recorded; the parent continues to record."""
    script = """
import os, sys
from steptape import Recorder
with Recorder(sys.argv[1]) as rec:
    if os.fork() == 0:
        rec.step(loss=1.0)
        os._exit(0)
    os.wait()
    rec.step(loss=2.0)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)

    assert done.stderr.count("the run belongs to the parent process. Training continues, unrecorded") == 1

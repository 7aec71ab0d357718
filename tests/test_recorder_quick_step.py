"""A repeated step takes a fast path that writes exactly what the general path writes."""

from __future__ import annotations

import inspect
import itertools
import math
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from device_tensors import DeviceTensor
from drawing import examples
from hypothesis import example, given
from hypothesis import strategies as st
from measuring import not_measured

from steptape import Plan, Recorder, open_run, verify
from steptape.recorder.control import Control
from steptape.recorder.event_log import EventLog
from steptape.store.events import Event

_Call = TypeVar("_Call")

#: The arguments of a loop to ``step``: mostly the same floats, sometimes others.
VALUES = st.one_of(
    st.floats(),
    st.sampled_from([1, 2**60, True, None, "text", math.nan, math.inf, {"a": 1.0}]),
    st.sampled_from([10**400, 2**53 + 1, "other text", "half a pair: \ud800"]),
    st.sampled_from([np.float16(0.1), np.float32(0.1), np.float64(0.1), np.longdouble(0.1), np.float32(math.nan)]),
    st.sampled_from(
        [np.int64(2), np.int64(2**60), np.uint8(3), np.bool_(True), np.timedelta64(3, "s"), np.str_("text")]
    ),
    st.sampled_from([np.ones(1), np.ones(2), np.array(3.0)]),
    st.sampled_from([torch.tensor(0.1), torch.tensor([2]), torch.tensor(True), torch.ones(2)]),
    st.sampled_from([DeviceTensor(torch.tensor(0.1)), DeviceTensor(torch.ones(2)), torch.ones((), device="meta")]),
)
ARGUMENTS = {
    "step": st.sampled_from([None, 0, 3, 7, 2**60, -1, True, np.int64(5), 4.0, 4.5, "four"]),
    "epoch": st.sampled_from([None, 0, 2, 1.5, math.nan, math.inf, 2**60, 10**400, np.float64(0.5), True, "two"]),
    "micro_step": st.sampled_from([0, 4, 2**31, -1, None, np.int64(3), 2.0]),
}
PLAIN = st.fixed_dictionaries({"loss": st.floats(), "lr": st.floats()})
IN_A_MAPPING = st.fixed_dictionaries(
    {"train/loss": VALUES, "Überlauf": VALUES}, optional={3: st.floats(), "step": st.floats(), "samples": VALUES}
)
CALLS = st.lists(
    st.one_of(
        PLAIN,
        PLAIN,
        PLAIN,
        st.fixed_dictionaries({"loss": VALUES, "lr": VALUES}),
        st.fixed_dictionaries({"lr": st.floats(), "loss": st.floats()}),
        st.fixed_dictionaries({"loss": st.floats()}, optional={"step": st.integers(0, 99), "type": st.floats()}),
        st.fixed_dictionaries({"loss": st.floats(), "lr": VALUES}, optional=ARGUMENTS),
        st.fixed_dictionaries(
            {"loss": st.floats(), "sample_ids": st.sampled_from([[1, 2], ["a", "b"], ["17", "18"], np.arange(3), 5])},
            optional={"sample_tokens": st.just([1, 2]), "phase": st.just("warm"), "num_tokens": st.integers(0, 9)},
        ),
        st.fixed_dictionaries(
            {
                "loss": st.floats(),
                "samples": st.just([1.0, math.nan, 3.0]),
                "sample_ids": st.sampled_from([[1, 2, 3], ["a", "b", "c"], [1, 2], None]),
                "token_losses": st.sampled_from([None, [[1.0], [2.0], [3.0, 4.0]]]),
            },
            optional={"sample_tokens": st.just([1, 2, 3])},
        ),
    ),
    max_size=12,
)

RULES = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 1 and times < 3, operations: [hfcontrols.should_save]}
  - {name: not_finite, triggers: [on_step_end], rule: not isfinite(loss), operations: [hfcontrols.should_log]}
params: {times: 2}
"""


def recorded(
    call: Callable[[Recorder, _Call], object], calls: list[_Call], rules: Path | None
) -> tuple[list[str], str]:
    """Return what a run holds after these calls: its events without clocks, and its samples."""
    with tempfile.TemporaryDirectory() as store:
        with Recorder(store, rules=rules, plan=Plan(steps_per_epoch=5)) as rec:
            rec.epoch_begin()
            for given in calls:
                # The first of a kind takes the general path.
                call(rec, given)
                call(rec, given)
        rec.close(seal=True)
        run = open_run(rec.folder)
        samples = run.samples().drop_columns(["run_id"]).to_pylist()
        return [without_clocks(event) for event in run.events()], repr(samples)


def without_clocks(event: Event) -> str:
    """Return the event as text (NaN equals NaN there), without its times and without the order of its attributes."""
    return repr(event._replace(time_ns=0, elapsed_ns=0, attrs=dict(sorted(event.attrs.items()))))


def general_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the kinds of events on the general path from now on; the one-second check is off."""
    kinds: list[str] = []
    record = EventLog.record

    def noted(tape: EventLog, kind: str, *given: Any, **more: Any) -> Any:
        kinds.append(kind)
        return record(tape, kind, *given, **more)

    monkeypatch.setattr(EventLog, "record", noted)
    monkeypatch.setattr("steptape.store.journal.writer.LOOK_EVERY_NS", 10**18)
    return kinds


@pytest.mark.filterwarnings("ignore")
@examples(15)
@given(calls=CALLS, has_rules=st.booleans())
@example(calls=[{"lr": 0.0, "loss": 0.0}] * 2 + [{"loss": 2**60, "lr": 2**60}], has_rules=False)
def test_the_quick_step_writes_what_the_general_one_does(
    calls: list[dict[str, Any]], has_rules: bool, tmp_path: Path
) -> None:
    """Events, samples and decisions agree for any sequence of calls."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    policy = rules if has_rules else None

    quick = recorded(lambda rec, arguments: rec.step(**arguments), calls, policy)

    assert quick == recorded(lambda rec, arguments: Recorder.step(rec, **arguments), calls, policy)


@pytest.mark.filterwarnings("ignore")
@examples(15)
@given(
    calls=st.lists(
        st.one_of(
            IN_A_MAPPING.map(lambda given: (given, {})),
            PLAIN.map(lambda given: (None, given)),
            st.tuples(IN_A_MAPPING, st.fixed_dictionaries({}, optional={**ARGUMENTS, "lr": st.floats()})),
        ),
        max_size=12,
    )
)
def test_the_quick_step_takes_a_mapping_as_the_general_one_does(
    calls: list[tuple[dict[str, Any] | None, dict[str, Any]]],
) -> None:
    """The calls mix names that cannot be parameters, keys that are not text, arguments, and metrics by keyword."""
    quick = recorded(lambda rec, call: rec.step(call[0], **call[1]), calls, None)

    assert quick == recorded(lambda rec, call: Recorder.step(rec, call[0], **call[1]), calls, None)


def test_the_quick_step_looks_like_the_method(tmp_path: Path) -> None:
    """Help and signature are the method's."""
    with Recorder(tmp_path) as rec:
        for _ in range(3):
            rec.step(loss=1.0, lr=0.1)

        assert "step" in vars(rec)
        assert inspect.signature(rec.step) == inspect.signature(Recorder.step.__get__(rec))
        assert rec.step.__doc__ == Recorder.step.__doc__


@pytest.mark.parametrize("value", [0.5, 3, np.float32(0.5), torch.tensor(0.5)], ids=lambda value: type(value).__name__)
def test_any_number_that_the_host_has_takes_the_quick_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    """It does so by keyword and in a dictionary, from the second such call on."""
    generally = general_calls(monkeypatch)
    with Recorder(tmp_path) as rec:
        for _ in range(5):
            rec.step(loss=value)
        for _ in range(5):
            rec.step({"train/loss": value})

    assert generally.count("step_end") == 2
    assert open_run(rec.folder).series("train/loss")["value"].to_pylist() == [float(value)] * 5


EVERYDAY: dict[str, Callable[[Recorder, int], object]] = {
    "step": lambda rec, n: rec.step(loss=0.5, step=2 * n),
    "epoch": lambda rec, n: rec.step({"loss": 0.5}, epoch=n / 10, step=n),
    "micro_step": lambda rec, _: rec.step({"loss": 0.5}, micro_step=4),
    "None": lambda rec, _: rec.step(loss=0.5, val_loss=None),
    "text": lambda rec, n: rec.step({"loss": 0.5, "phase": "warmup" if n < 10 else "decay"}),
    "numpy": lambda rec, n: rec.step(loss=np.float32(0.5), lr=np.float64(0.5), tokens=np.int64(n)),
    "samples": lambda rec, n: rec.step({"loss": 0.5}, samples=[0.5, 1.5], sample_ids=[n, n + 1], step=n),
    "ids alone": lambda rec, n: rec.step({"loss": 0.5}, sample_ids=[n, n + 1]),
    "counts": lambda rec, n: rec.step(loss=0.5, num_samples=n, num_tokens=10.0),
    "two sets": lambda rec, n: rec.step({"loss": 0.5} if n % 2 else {"val/loss": 0.5, "n": n}),
    "tensors on a device": lambda rec, n: rec.step(loss=DeviceTensor(torch.tensor(0.5)), lr=0.1 * n),
    "2,000 names": lambda rec, _: rec.step({f"layer/{index}": 0.5 for index in range(2_000)}),
}


@pytest.mark.parametrize("call", EVERYDAY.values(), ids=EVERYDAY)
def test_calls_of_every_day_take_the_quick_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Recorder, int], object]
) -> None:
    """Only the first call of each set of names is general."""
    generally = general_calls(monkeypatch)
    with Recorder(tmp_path) as rec:
        for number in range(20):
            call(rec, number)

    assert generally.count("step_end") <= 2
    assert sum(event.kind == "step_end" and not event.is_late for event in open_run(rec.folder).events()) == 20


def test_sets_of_names_beyond_those_that_are_kept_are_recorded_all_the_same(tmp_path: Path) -> None:
    """Forty sets alternate, twice."""
    with Recorder(tmp_path) as rec:
        for number in range(80):
            rec.step({f"loss/{number % 40}": float(number)})

    found = [event.metrics for event in open_run(rec.folder).events() if event.kind == "step_end"]

    assert found == [{f"loss/{number % 40}": float(number)} for number in range(80)]


def test_names_whose_first_event_was_lost_are_written_with_the_next(tmp_path: Path) -> None:
    """The fast path waits until the journal holds the layout."""
    with Recorder(tmp_path) as rec:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
            for value in (1.0, 2.0):
                rec.step(loss=value)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        for value in (3.0, 4.0):
            rec.step(loss=value)

    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [3.0, 4.0]


@pytest.mark.parametrize(
    "names",
    [("type", "float"), ("class", "lambda"), ("train/loss",), ("Überlauf",), ("_seq", "_pack"), ("metrics", "self_")],
    ids="-".join,
)
def test_metrics_may_have_any_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Python keywords, builtins and names that are not identifiers work at each step."""
    with Recorder(tmp_path) as rec:
        for step in range(4):
            values: dict[str, Any] = dict.fromkeys(names, float(step))
            rec.step(**values)

    found = [event.metrics for event in open_run(rec.folder).events() if event.kind == "step_end"]

    assert found == [dict.fromkeys(names, float(step)) for step in range(4)]


@pytest.mark.parametrize("name", ["len", "float", "isinstance", "BaseException"])
def test_a_metric_may_be_called_like_what_a_step_needs(tmp_path: Path, name: str) -> None:
    """The step has sample losses too, whose length the record states."""
    with Recorder(tmp_path) as rec:
        for step in range(4):
            value: dict[str, Any] = {name: float(step)}
            rec.step({}, samples=[1.0, 2.0], **value)
        for step in range(4, 8):
            value = {name: float(step)}
            rec.step(samples=[1.0, 2.0], **value)

        assert "step" in vars(rec)
    assert open_run(rec.folder).series(name)["value"].to_pylist() == [float(step) for step in range(8)]


def test_a_subclass_that_overrides_step_keeps_its_step(tmp_path: Path) -> None:
    """It is not replaced."""

    class Doubling(Recorder):
        def step(self, *_: Any, **scalars: Any) -> Control:
            return super().step(loss=2 * scalars["loss"])

    with Doubling(tmp_path) as rec:
        for _ in range(5):
            rec.step(loss=1.0)

    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [2.0] * 5


def test_a_callback_that_raises_is_heard_once_and_its_step_is_recorded_once(tmp_path: Path) -> None:
    """An OSError of the loop's callback is not mistaken for one of the journal."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)

    def fail() -> None:
        raise OSError("no room for the checkpoint")

    with Recorder(tmp_path / "runs", rules=rules, callbacks={"save": fail}) as rec:
        for _ in range(3):
            rec.step(loss=0.5)
        with pytest.raises(OSError, match="no room for the checkpoint"):
            rec.step(loss=2.0)

    assert open_run(rec.folder).series("loss", kind="step_end")["value"].to_pylist() == [0.5, 0.5, 0.5, 2.0]
    assert verify(open_run(rec.folder)).identical


def test_quick_steps_go_on_from_segment_to_segment(tmp_path: Path) -> None:
    """Each new segment gets the layouts that its events refer to."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=0.0)
        rec._live.event_log.journal._segment_bytes = 2_000
        for step in range(1, 200):
            rec.step(loss=float(step))
            if step % 50 == 0:
                rec.log(other=float(step))

    run = open_run(rec.folder)

    assert run.series("loss")["value"].to_pylist() == [float(step) for step in range(200)]
    assert [event.seq for event in run.events()] == list(range(run.table().num_rows))


def test_threads_that_record_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """Each call of each thread is one event."""
    with Recorder(tmp_path) as rec:
        for _ in range(3):
            rec.step(loss=-1.0)

        def record(first: int) -> None:
            for value in range(first, first + 500):
                rec.step(loss=float(value))

        threads = [threading.Thread(target=record, args=(1_000 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = open_run(rec.folder)
    steps = found.series("loss")

    assert sorted(steps["value"].to_pylist()[3:]) == [float(1_000 * n + i) for n in range(4) for i in range(500)]
    assert steps["step"].to_pylist() == list(range(1, 2_004))


def test_a_mapping_that_changes_in_the_middle_of_a_step_is_recorded_as_it_is_then(tmp_path: Path) -> None:
    """Another thread may fill it; the step neither fails nor loses a value."""
    metrics = {"loss": 1.0}

    def in_the_middle(_: object, event: str, called: object) -> None:
        if event == "c_call" and called is time.time_ns:
            metrics["lr"] = 0.1

    with Recorder(tmp_path, name="run") as rec:
        for _ in range(2):
            rec.step(metrics)
        sys.setprofile(in_the_middle)
        try:
            rec.step(metrics)
        finally:
            sys.setprofile(None)
    assert [event.metrics for event in open_run(rec.folder).events() if event.kind == "step_end"] == [
        {"loss": 1.0},
        {"loss": 1.0},
        {"loss": 1.0, "lr": 0.1},
    ]


@contextmanager
def alarms(handler: Callable[[int, Any], object], every_s: float) -> Iterator[None]:
    """Raise a signal periodically, at any point of the program."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_record_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """Its event follows the interrupted one; a handler that interrupts a handler works alike."""
    noted = itertools.count()

    def annotate(*_: object) -> None:
        rec.annotate(f"note {next(noted)}")

    with Recorder(tmp_path) as rec:
        with alarms(annotate, 0.0003):
            for step in range(5_000):
                rec.step(loss=float(step))
        count = next(noted)

    run = open_run(rec.folder)
    notes = [event.attrs["text"] for event in run.events() if event.kind == "annotation"]

    assert count > 10
    assert sorted(notes) == sorted(f"note {number}" for number in range(count))
    assert run.series("loss")["value"].to_pylist() == [float(step) for step in range(5_000)]
    assert [event.seq for event in run.events()] == list(range(run.table().num_rows))


@pytest.mark.parametrize("others", [{}, {"group": {"a": 1.0}}], ids=["quick", "general"])
def test_a_signal_handler_may_record_a_step_in_the_middle_of_another(
    tmp_path: Path, others: dict[str, dict[str, float]]
) -> None:
    """Neither is lost, and each has a number of its own."""
    made = itertools.count(1)

    def step_too(*_: object) -> None:
        rec.step(loss=-float(next(made)))

    with Recorder(tmp_path) as rec:
        with alarms(step_too, 0.0003):
            for number in range(5_000):
                rec.step({"loss": float(number), **others})
        count = next(made) - 1

    run = open_run(rec.folder)
    losses = run.series("loss")["value"].to_pylist()

    assert count > 10
    assert [loss for loss in losses if loss >= 0] == [float(number) for number in range(5_000)]
    assert sorted(loss for loss in losses if loss < 0) == [float(number) for number in range(-count, 0)]
    assert [event.seq for event in run.events()] == list(range(run.table().num_rows))
    assert [event.step for event in run.events() if event.kind == "step_end"] == [*range(1, 5_001 + count)]


@not_measured
def test_an_interrupt_in_the_middle_of_a_step_doubles_nothing(tmp_path: Path) -> None:
    """Every step that returned is recorded once; an interrupted one is recorded once or not at all."""
    armed: list[bool] = []

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    returned: list[float] = []
    interrupts = 0
    with Recorder(tmp_path) as rec, alarms(interrupt, 10.0):
        for step in range(3_000):
            try:
                armed.append(step % 10 == 0)
                if armed[0]:
                    signal.setitimer(signal.ITIMER_REAL, 5e-6 * (1 + step % 7))
                rec.step(loss=float(step))
                armed.clear()
                returned.append(float(step))
            except KeyboardInterrupt:
                armed.clear()
                interrupts += 1

    run = open_run(rec.folder)
    found = run.series("loss")["value"].to_pylist()

    assert interrupts > 10
    assert set(returned) <= set(found)
    assert len(found) == len(set(found))
    assert [event.seq for event in run.events()] == list(range(run.table().num_rows))

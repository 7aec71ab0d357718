"""Vectors are values of an event: taken from whatever holds them, and read back by every reader."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_recorder_device_values import OnDevice

from steptape import Recorder, open_run, open_store
from steptape.store.errors import InvalidEvent
from steptape.store.event_json import event_to_line, events_from_lines
from steptape.store.events import MOST_VALUES, MOST_VALUES_OF_EVENT, Event
from steptape.store.run import Run

COUNTS = [3.0, 0.0, math.inf, -1.5]
HOLDERS: dict[str, Any] = {
    "list": COUNTS,
    "tuple": tuple(COUNTS),
    "array": array("d", COUNTS),
    "numpy": np.array(COUNTS),
    "float32": np.array(COUNTS, np.float32),
    "torch": torch.tensor(COUNTS),
    "half": torch.tensor(COUNTS, dtype=torch.float16),
    "integers": [3, 0, 7, 2**53],
    "numpy integers": np.array([3, 0, 7, 2**53]),
    "large": [2**70, -(2**62)],
    "large, of numpy": np.array([-(2**62), 2**60]),
    "torch integers": torch.tensor([3, 0, 7, 2**53]),
    "strided": torch.tensor([3, 9, 0, 9, 7, 9, 2**53, 9])[::2],
    "booleans": [True, False],
    "empty": [],
}


class DeviceVector(OnDevice):
    """A vector on such a device."""

    ndim = 1

    def __len__(self) -> int:
        return len(self.hidden)

    def detach(self) -> DeviceVector:
        """Return itself."""
        return self

    def clone(self) -> DeviceVector:
        """Return a copy on the device."""
        return DeviceVector(self.hidden.clone())

    def cpu(self) -> torch.Tensor:
        """Return the values on the host."""
        return self.hidden


def vectors_of(event: Event) -> dict[str, list[float]]:
    """Return the vectors of an event as lists."""
    return {name: list(values) for name, values in event.vectors.items()}


def recorded(run: Run, **more: Any) -> list[tuple[str, int, dict[str, list[float]]]]:
    """Return kind, step and vectors of the events that have vectors."""
    events = run.events(samples=True, **more)
    return [(event.kind, event.step, vectors_of(event)) for event in events if event.vectors]


@pytest.mark.parametrize("seals", [False, True])
def test_vectors_come_back_as_doubles_from_whatever_held_them(tmp_path: Path, seals: bool) -> None:
    """From the journal and from Parquet alike, through events, SQL and ``Run.vectors``."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(loss=1.0, vectors=HOLDERS)
        rec.step(loss=0.5)
        rec.log(lr=0.1, vectors={"größe/0": COUNTS})
        rec.event("custom:route", vectors={"x": [1, 2]})
        live = recorded(open_run(rec.folder))
    if seals:
        rec.close(seal=True)
    run = open_run(rec.folder)

    whole = [3.0, 0.0, 7.0, 2.0**53]
    expected = dict.fromkeys(HOLDERS, COUNTS) | {name: whole for name in HOLDERS if "integers" in name}
    expected |= {"large": [2.0**70, -(2.0**62)], "large, of numpy": [-(2.0**62), 2.0**60]}
    expected |= {"strided": whole, "booleans": [1.0, 0.0], "empty": []}
    events = [("step_end", 1, expected), ("log", 2, {"größe/0": COUNTS}), ("custom:route", 2, {"x": [1.0, 2.0]})]
    assert bool(list(rec.folder.glob("vectors-*"))) == seals
    assert live == recorded(run) == events
    rows = [(step, name, values) for _, step, vectors in events for name, values in vectors.items()]
    assert run.rows('SELECT step, name, "values" FROM vectors ORDER BY seq') == [
        {"step": step, "name": name, "values": values} for step, name, values in rows
    ]
    assert run.vectors("x").to_pylist()[0]["values"] == [1.0, 2.0]
    assert [event.vectors for event in run.events()] == [{}] * len(list(run.events()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": "1 2 3"}, "vector 'x' is text"),
        ({"x": torch.zeros(2, 3)}, "vector 'x' has 2 dimensions where a vector has one"),
        ({"x": [[1, 2], [3, 4]]}, "vector 'x' has 2 dimensions"),
        ({"x": torch.tensor(1.0)}, "vector 'x' is a single number"),
        ({"x": 3}, "vector 'x' is a single number"),
        ({"x": {"a": 1}}, "vector 'x' is not a sequence"),
        ({"x": [1, None]}, "vector 'x' must be a one-dimensional sequence of numbers"),
        ({"x": [1, "two"]}, "vector 'x' must be a one-dimensional sequence of numbers"),
        ({"x": [2**53 + 1]}, "an integer that no double holds exactly"),
        ({"x": np.array([2**60 + 1])}, "an integer that no double holds exactly"),
        ({"x": torch.tensor([2**60 + 1])}, "an integer that no double holds exactly"),
        ({"x": np.ma.masked_array([1.0, 2.0], [True, False])}, "some are masked"),
        ({"x": torch.tensor([1j])}, "vector 'x'"),
        ({"x": [0.0] * (MOST_VALUES + 1)}, "vector 'x' is longer than 65,536 values"),
        ([1, 2, 3], "vectors must be a mapping of names to vectors"),
    ],
)  # fmt: skip
def test_a_wrong_vector_costs_a_warning_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: Any, message: str
) -> None:
    """Loss and other vectors of the step are recorded. With ``strict`` the call raises."""
    more = {"kept": [1, 2]} if isinstance(wrong, dict) else {}
    given = {**wrong, **more} if isinstance(wrong, dict) else wrong
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(loss=1.0, vectors=given)
        rec.step(loss=2.0, vectors=given)
    with Recorder(tmp_path, quiet=True, strict=True) as strict, pytest.raises(InvalidEvent):
        strict.step(loss=1.0, vectors=given)

    events = [event for event in open_run(rec.folder).events(samples=True) if event.kind == "step_end"]
    assert [event.metrics["loss"] for event in events] == [1.0, 2.0]
    assert [vectors_of(event) for event in events] == [{name: [1.0, 2.0] for name in more}] * 2
    assert [message in warned for warned in caplog.messages] == [True]


def test_the_vectors_of_one_event_have_a_limit_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first ones that fit are recorded."""
    many = {str(number): np.zeros(MOST_VALUES) for number in range(MOST_VALUES_OF_EVENT // MOST_VALUES)}
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(vectors={**many, "more": [1.0]})

    (event,) = [event for event in open_run(rec.folder).events(samples=True) if event.vectors]
    assert list(event.vectors) == list(many)
    assert "vector 'more' exceeds the 1,048,576 values" in caplog.text


def test_vectors_on_a_device_come_late_and_others_at_once(tmp_path: Path) -> None:
    """The training never waits for them. A host array that the loop changes afterwards keeps its values."""
    host = np.array([1.0, 2.0])
    device = torch.tensor([5, 6])
    with Recorder(tmp_path, quiet=True) as rec:
        for _ in range(4):
            rec.step(loss=1.0, vectors={"host": host, "device": DeviceVector(device)})
            host += 1
            device += 10
        early = recorded(open_run(rec.folder))
    events = [event for event in open_run(rec.folder).events(samples=True) if event.vectors]

    assert early[0] == ("step_end", 1, {"host": [1.0, 2.0]})
    late = [event for event in events if event.is_late]
    assert [(event.step, vectors_of(event)["device"][0], event.attrs["awaited"]) for event in late] == [
        (1, 5.0, ["vectors"]), (2, 15.0, ["vectors"]), (3, 25.0, ["vectors"]), (4, 35.0, ["vectors"]),
    ]  # fmt: skip
    assert [event.vectors["host"][0] for event in events if not event.is_late] == [1.0, 2.0, 3.0, 4.0]


def test_vectors_of_a_rolled_back_part_leave_the_view(tmp_path: Path) -> None:
    """``all_vectors`` keeps them, marked."""
    with Recorder(tmp_path, quiet=True) as rec:
        for step in range(1, 4):
            rec.step(vectors={"x": [step]})
            if step == 1:
                state = rec.state_dict()
    with Recorder(tmp_path, quiet=True, resume=state) as rec:
        rec.step(vectors={"x": [20]})
    store = open_store(tmp_path)

    assert [row["values"] for row in store.rows('SELECT "values" FROM vectors ORDER BY attempt, seq')] == [
        [1.0],
        [20.0],
    ]
    rows = store.rows('SELECT "values"[1] AS x, rolled_back FROM all_vectors ORDER BY attempt, seq')
    assert [(row["x"], row["rolled_back"]) for row in rows] == [(1, False), (2, True), (3, True), (20, False)]
    assert [kept["values"][0] for kept in open_run(rec.folder).vectors().to_pylist()] == [1.0, 20.0]


def test_a_changed_vector_changes_the_digest_of_the_log(tmp_path: Path) -> None:
    """``steptape verify`` then says that the log has changed."""
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(vectors={"x": [1, 2]})
    rec.close(seal=True)
    run = open_run(rec.folder)
    assert run.digest_faults() == []
    (path,) = rec.folder.glob("vectors-*")
    table = pq.read_table(path)
    changed = table.set_column(table.schema.get_field_index("values"), table.schema.field("values"), [[[1.0, 3.0]]])
    pq.write_table(changed, path)

    assert ["has changed" in fault for fault in run.digest_faults()] == [True]


def test_vectors_survive_json_lines() -> None:
    """An export has them under ``vectors``, and what reads such lines takes them."""
    event = Event("step_end", step=1, vectors={"x": array("d", [1.0, math.nan, math.inf])})
    line = event_to_line(event)

    assert json.loads(line)["vectors"] == {"x": [1.0, "NaN", "Infinity"]}
    (back,) = events_from_lines([line], source="x")
    assert str(back.vectors) == str(event.vectors)
    assert "vectors" not in json.loads(event_to_line(Event("step_end")))
    with pytest.raises(InvalidEvent, match="vector 'x' must be a list of numbers"):
        list(events_from_lines(['{"event": "step_end", "vectors": {"x": 3}}'], source="x"))

"""A store finds its runs, and reports a missing or broken store, run or run.json."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import TelemetryError, open_run, open_store
from steptape.store.errors import NotARun, RunChanging, RunNotFound, StoreNotFound
from steptape.store.events import Event, SampleLosses
from steptape.store.run_folder import retrying
from steptape.store.run_info import FORMAT
from steptape.store.store import Store


def test_a_store_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """A file is not a store either."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreNotFound, match=r"missing: no such store\."):
        open_store(tmp_path / "missing")
    with pytest.raises(StoreNotFound):
        open_store(str(tmp_path / "file"))
    with pytest.raises(StoreNotFound):
        open_store("nul\0nul")


@pytest.mark.parametrize("path", ["missing", ".", "file", "nul\0nul"])
def test_a_path_that_is_no_run_is_an_error_of_ours(tmp_path: Path, path: str) -> None:
    """The path may be missing, a folder without run.json, a file, or no path at all."""
    (tmp_path / "file").write_text("")

    with pytest.raises(NotARun):
        open_run(tmp_path / path)


def test_runs_come_oldest_first_and_other_folders_do_not_count(
    store_path: Path, store_folder: Callable[..., Path]
) -> None:
    """Run ids sort by time; a store may hold notes and checkpoints next to runs."""
    for run_id in ("20260102T000000-aaaaaa", "20250102T000000-bbbbbb"):
        store_folder(run_id)
    store_folder(".hidden")
    (store_path / "checkpoints").mkdir()
    (store_path / "notes.txt").write_text("")
    store = open_store(store_path)

    assert [run.run_id for run in store] == ["20250102T000000-bbbbbb", "20260102T000000-aaaaaa"]
    assert store.runs()["run_id"].to_pylist() == ["20250102T000000-bbbbbb", "20260102T000000-aaaaaa"]


def test_runs_are_chosen_by_status_group_and_tag(store_path: Path, store_folder: Callable[..., Path]) -> None:
    """Questions work alone and together."""
    store_folder("a", status="failed", group="g", tags=("x",))
    store_folder("b", group="g")
    store_folder("c", tags=("x", "y"))
    store = open_store(store_path)

    assert store.runs("status:failed")["run_id"].to_pylist() == ["a"]
    assert store.runs("group:g")["run_id"].to_pylist() == ["a", "b"]
    assert store.runs("tag:x status:completed")["run_id"].to_pylist() == ["c"]
    assert store.runs(where="tag:z").num_rows == 0


def test_a_run_is_found_by_id_and_by_a_name_that_is_its_own(
    store_path: Path, store_folder: Callable[..., Path]
) -> None:
    """An id takes precedence over a name."""
    store_folder("run-1", name="digits")
    store_folder("run-2", name="run-1")
    store = open_store(store_path)

    assert [store.run(key).run_id for key in ("run-1", "digits", "run-2")] == ["run-1", "run-1", "run-2"]


@pytest.fixture
def namesakes(store_path: Path, store_folder: Callable[..., Path]) -> Store:
    """A store of three runs of one name. The order of their starts is not that of their ids."""
    for start_us, run_id in enumerate(("run-2", "run-3", "run-1")):
        folder = store_folder(run_id, name="digits")
        info = json.loads((folder / "run.json").read_text())
        info["attempts"][0]["started_ns"] += 1000 * start_us
        (folder / "run.json").write_text(json.dumps(info))
    return open_store(store_path)


def test_runs_that_start_within_a_second_are_in_order_of_start(namesakes: Store) -> None:
    """Run ids hold seconds and random digits."""
    assert [run.run_id for run in namesakes] == ["run-2", "run-3", "run-1"]
    assert namesakes.runs()["run_id"].to_pylist() == ["run-2", "run-3", "run-1"]


def test_a_name_that_runs_share_is_the_newest_run(namesakes: Store) -> None:
    """The last that started is meant nine times of ten."""
    assert namesakes.run("digits").run_id == "run-1"


def test_runs_that_share_a_name_are_counted_from_the_oldest(namesakes: Store) -> None:
    """The numbers of runs stay as more are recorded."""
    assert [namesakes.run(f"digits@{number}").run_id for number in (1, 2, 3)] == ["run-2", "run-3", "run-1"]
    assert namesakes.run("run-3@1").run_id == "run-3"


@pytest.mark.parametrize("number", ["0", "4", "-1", "01", "x", "", "9" * 5000, "²"])
def test_a_number_that_no_run_of_a_name_has_is_refused(namesakes: Store, number: str) -> None:
    """The error says how far to count."""
    with pytest.raises(RunNotFound, match=r"3 runs called 'digits'; got 'digits@.*Count from digits@1.* to digits@3"):
        namesakes.run(f"digits@{number}")


def test_a_name_with_an_at_sign_is_a_name(namesakes: Store, store_folder: Callable[..., Path]) -> None:
    """A number is only looked for where no run has the whole name."""
    store_folder("run-4", name="digits@1")
    store_folder("run-5", name="team@home")

    keys = ("digits@1", "team@home", "team@home@1")
    assert [namesakes.run(key).run_id for key in keys] == ["run-4", "run-5", "run-5"]


@pytest.mark.parametrize(
    "key", ["../outside", "..", ".", "", "/", "a/b", "run-1/", "nul\0nul", "run-1\n", "x" * 300, "\ud800", "*"]
)
def test_a_run_id_never_leads_out_of_the_store(tmp_path: Path, store_folder: Callable[..., Path], key: str) -> None:
    """It is one path component, or invalid."""
    store_folder("run-1")
    store_folder("outside", root=tmp_path)

    with pytest.raises(RunNotFound):
        open_store(tmp_path / "runs").run(key)
    with pytest.raises(RunNotFound):
        open_store(tmp_path / "runs").run(str(tmp_path / "outside"))


GOOD = {
    "format": FORMAT,
    "run_id": "broken",
    "name": "n",
    "attempts": [{"attempt": 0, "status": "completed", "started_ns": 1}],
}
BROKEN: dict[str, Any] = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe\xfd",
    "too deep": b"[" * 100_000,
    "a list": b"[]",
    "a number": b"3",
    "null": b"null",
    "no id": {key: value for key, value in GOOD.items() if key != "run_id"},
    "no attempts": {**GOOD, "attempts": []},
    "no list of attempts": {**GOOD, "attempts": {"0": {}}},
    "an attempt that is none": {**GOOD, "attempts": [3]},
    "an attempt without a beginning": {**GOOD, "attempts": [{"attempt": 0, "status": "completed"}]},
    "a beginning in words": {**GOOD, "attempts": [{"attempt": 0, "status": "completed", "started_ns": "now"}]},
    "a plan in words": {**GOOD, "attempts": [{"attempt": 0, "status": "completed", "started_ns": 1, "plan": "long"}]},
    "tags in one word": {**GOOD, "tags": "abc"},
    "a config in words": {**GOOD, "config": "lr=1"},
    "a group of groups": {**GOOD, "group": ["a"]},
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_run_json_is_told_and_hides_no_other_run(
    store_path: Path, store_folder: Callable[..., Path], content: Any
) -> None:
    """The run itself is refused; lists and SQL show the others, and the problems give the reason."""
    store_folder("good")
    broken = store_folder("broken")
    (broken / "run.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    store = open_store(store_path)

    with pytest.raises(NotARun, match=r"run\.json cannot be read"):
        store.run("broken")
    assert store.rows("SELECT run_id FROM runs") == [{"run_id": "good"}]
    assert [str(problem)[: len(str(broken))] for problem in store.entries()[1]] == [str(broken)]


def test_a_run_json_that_is_a_folder_is_told_too(store_path: Path, store_folder: Callable[..., Path]) -> None:
    """Not every OSError is a missing file."""
    folder = store_folder("odd")
    (folder / "run.json").unlink()
    (folder / "run.json").mkdir()

    assert (
        [type(problem) for problem in open_store(store_path).entries()[1]],
        open_store(store_path).runs().num_rows,
    ) == (
        [NotARun],
        0,
    )


def test_two_folders_of_one_run_are_read_once(
    store_path: Path, store_record: Callable[..., Path], store_steps: Any
) -> None:
    """A copy within the store would double every event; it is reported instead."""
    folder = store_record(store_steps([1.0]))
    copy = store_path / "run-1-copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    store = open_store(store_path)

    assert store.rows("SELECT count(*) AS n FROM events") == [{"n": 1}]
    assert "has a run with the same id" in str(store.entries()[1][0])


def test_an_empty_run_answers_everything(store_folder: Callable[..., Path]) -> None:
    """It ended before its first event."""
    run = open_run(store_folder())

    assert (list(run.events()), run.metrics(), run.table().num_rows, run.samples().num_rows) == ([], [], 0, 0)
    assert (run.decisions().num_rows, run.samples(step=1, top=3).num_rows) == (0, 0)
    with pytest.raises(TelemetryError, match="Recorded here: none"):
        run.series("loss")


def test_a_metric_that_no_event_carries_is_named_with_those_that_are(
    store_record: Callable[..., Path], store_steps: Any
) -> None:
    """A typo is obvious at once."""
    with pytest.raises(TelemetryError, match=r"run-1: no event carries this metric; got 'los'. Recorded here: loss"):
        open_run(store_record(store_steps([1.0]))).series("los")


def test_a_series_stands_on_its_own_clock(store_record: Callable[..., Path]) -> None:
    """A missing value is absent, a NaN is NaN; without ``kind`` the kind counts that carried the name first."""
    events = [
        Event("step_end", step=1, metrics={"loss": 1.0}),
        Event("log", step=1, metrics={"loss": 1.5}),
        Event("step_end", step=2, metrics={"other": 1.0}),
        Event("step_end", step=3, metrics={"loss": float("nan")}),
    ]
    run = open_run(store_record(events))

    assert run.series("loss").column_names == [
        "attempt", "rank", "seq", "kind", "step", "epoch", "time_ns", "elapsed_ns", "value",
    ]  # fmt: skip
    assert str(run.series("loss").select(["step", "value"]).to_pylist()) == (
        "[{'step': 1, 'value': 1.0}, {'step': 3, 'value': nan}]"
    )
    assert run.series("loss", kind="any")["value"].to_pylist()[:2] == [1.0, 1.5]
    assert run.series("loss", kind="log")["value"].to_pylist() == [1.5]
    assert run.series("loss", kind="save").num_rows == 0


def test_samples_are_found_by_step_and_by_their_losses(store_record: Callable[..., Path]) -> None:
    """NaN counts as the highest loss, infinity as the next; equal losses are in recorded order."""
    losses = [[1.0, float("nan")], [float("inf"), 3.0], [3.0, -1.0]]
    run = open_run(
        store_record(
            [Event("step_end", step=step) for step in (1, 2, 3)],
            samples={index: SampleLosses(struct.pack("<2f", *pair)) for index, pair in enumerate(losses)},
        )
    )
    top = run.samples(top=4)

    assert str(top["loss"].to_pylist()) == "[nan, inf, 3.0, 3.0]"
    assert top["step"].to_pylist() == [1, 2, 2, 3]
    assert run.samples(step=3)["loss"].to_pylist() == [3.0, -1.0]
    assert run.samples(step=2, top=1)["loss"].to_pylist() == [float("inf")]


def test_events_are_those_of_the_deciding_rank_unless_told(store_record: Callable[..., Path], store_steps: Any) -> None:
    """Attempts are in order, sealed or not, and each rank is separate."""
    events = [
        *store_steps([1.0]),
        *store_steps([10.0], rank=1),
        *store_steps([2.0], attempt=1),
        *store_steps([20.0], attempt=1, rank=1),
    ]
    run = open_run(store_record(events))

    assert [event.metrics["loss"] for event in run.events()] == [1.0, 2.0]
    assert [event.metrics["loss"] for event in run.events(rank=1)] == [10.0, 20.0]
    whole_log = run.events(rank=None, attempts="all")
    assert [(event.attempt, event.rank) for event in whole_log] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_reading_writes_nothing(store_path: Path, store_record: Callable[..., Path], store_steps: Any) -> None:
    """This holds even if a dead run waits to be sealed."""
    store_record(store_steps([1.0]), status="running")
    before = {path: path.stat().st_mtime_ns for path in store_path.rglob("*")}
    store = open_store(store_path)
    store.runs()
    store.sql("FROM windows")
    list(store.run("run-1").events())

    assert {path: path.stat().st_mtime_ns for path in store_path.rglob("*")} == before


def test_a_reader_tries_again_as_long_as_other_files_vanish(tmp_path: Path) -> None:
    """A sealer at work replaces one file after the other."""
    missing = iter([tmp_path / str(number) for number in range(30)])

    def read() -> int:
        return sum(len(path.read_bytes()) for path in missing)

    assert retrying(read) == 0


def test_a_file_that_is_always_missing_is_an_error_of_ours(store_record: Callable[..., Path]) -> None:
    """A link to nowhere is listed, and never there."""
    folder = store_record([])
    (folder / "journal-1-0-000000000000").symlink_to("nowhere")

    with pytest.raises(RunChanging, match=r"journal-1-0-000000000000: files .* were replaced .* Try again"):
        open_run(folder)

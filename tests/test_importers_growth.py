"""Importing a source again keeps existing events, appends new ones, and reports a source that contradicts them."""

from __future__ import annotations

import csv
import io
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import open_run, open_store
from steptape.importers.discovery import all_readers, find_sources, reader_of
from steptape.importers.importing import Outcome, State, import_sources, with_names
from steptape.importers.source import Fact, ReadOptions
from steptape.store.events import Event
from steptape.store.run import Run

Imports = Callable[..., list[Outcome]]
Rows: TypeAlias = list[tuple[int, float, float | None, str | None]]

HEADING = "step,loss,val_loss\n"


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    """Import a path into the store ``runs``: ``imports(path, step_column=...)``."""

    def run(path: Path, **options: Any) -> list[Outcome]:
        sources = find_sources([path], all_readers()).sources
        return list(import_sources(tmp_path / "runs", sources, ReadOptions(**options)))

    return run


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    """Write a table with a step, a loss and an evaluation loss."""

    def write(rows: str) -> Path:
        path = tmp_path / "metrics.csv"
        path.write_text(HEADING + rows)
        return path

    return write


def only_run(tmp_path: Path) -> Run:
    """Return the store's one run."""
    (run,) = open_store(tmp_path / "runs")
    return run


def told(events: Sequence[Event]) -> list[tuple[str, int, dict[str, float]]]:
    """Return kind, step and values of events."""
    return [(event.kind, event.step, dict(event.metrics)) for event in events]


def test_importing_again_changes_nothing(tmp_path: Path, imports: Imports, table: Callable[[str], Path]) -> None:
    """Not even a file's mtime changes."""
    path = table("1,0.5,\n2,0.4,0.6\n")
    imports(path)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*")}

    (again,) = imports(path)

    assert (again.state, again.events) == (State.UNCHANGED, 0)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*")} == before


def test_a_source_that_has_grown_adds_what_is_new(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """They are appended to the same run, whose digests are renewed."""
    imports(table("1,0.5,\n2,0.4,0.6\n"))

    (grown,) = imports(table("1,0.5,\n2,0.4,0.6\n3,0.3,\n4,nan,0.5\n"))

    run = only_run(tmp_path)
    assert (grown.state, grown.events, grown.steps) == (State.GROWN, 3, 4)
    assert [event.seq for event in run.events()] == [0, 1, 2, 3, 4, 5]
    assert told(list(run.events()))[3:5] == [
        ("step_end", 3, {"loss": 0.3}),
        ("step_end", 4, {"loss": pytest.approx(math.nan, nan_ok=True)}),
    ]
    assert run.info.last.steps == 4
    assert run.digest_faults() == []


def test_a_row_that_was_read_half_written_is_completed(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """An event brings the values that were missing."""
    imports(table("1,0.5,\n2,0.4,\n"))

    imports(table("1,0.5,\n2,0.4,0.6\n"))

    assert told(list(only_run(tmp_path).events()))[-1] == ("evaluate", 2, {"val_loss": 0.6})


def test_rows_that_come_in_between_are_added_at_the_end(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """A logger that flushes late does this; the log only grows."""
    imports(table("1,0.5,\n3,0.3,\n"))

    imports(table("1,0.5,\n2,0.4,\n3,0.3,\n"))

    assert [event.step for event in only_run(tmp_path).events()] == [1, 3, 2]


def test_a_source_that_says_something_else_is_told_of_and_the_run_stays(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """A rewritten or truncated source does not change what was imported."""
    imports(table("1,0.5,\n2,0.4,\n"))
    before = told(list(only_run(tmp_path).events()))

    (outcome,) = imports(table("1,0.7,\n2,0.4,\n3,0.3,\n"))

    assert outcome.state is State.FAILED
    assert outcome.problem is not None
    assert "the imported value of 'loss' at step 1: 0.5" in outcome.problem
    assert told(list(only_run(tmp_path).events())) == before


@pytest.mark.parametrize("is_growing", [False, True], ids=["again", "followed"])
@pytest.mark.parametrize("steps", [9, 5, 3])
def test_a_log_that_another_training_has_replaced_adds_nothing(
    steps: int, is_growing: bool, tmp_path: Path, imports: Imports
) -> None:
    """Its values are those of the first one, as of a constant learning rate; its clock is another one."""

    def write(count: int, began_s: int) -> Path:
        rows = "".join(f"{step},0.1,{began_s + step}\n" for step in range(1, count + 1))
        (tmp_path / "log.csv").write_text("step,lr,timestamp\n" + rows)
        return tmp_path / "log.csv"

    imports(write(5, 1_700_000_000))
    folder = only_run(tmp_path).folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (outcome,) = imports(write(steps, 1_700_900_000), is_growing=is_growing)

    assert outcome.state is State.FAILED
    assert outcome.problem is not None
    assert "the source is the log of another training" in outcome.problem
    assert "To import the source again, delete the run first" in outcome.problem
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_steps_that_go_backwards_are_another_attempt(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """The resume rolls back the first attempt's events after its starting point."""
    imports(table("10,0.5,\n20,0.4,\n30,0.9,\n20,0.41,\n30,0.3,\n"))

    run = only_run(tmp_path)
    assert [(e.attempt, e.step, e.metrics["loss"]) for e in run.events()] == [(0, 10, 0.5), (1, 20, 0.41), (1, 30, 0.3)]
    assert [(e.attempt, e.step) for e in run.events(attempts="all")] == [(0, 10), (0, 20), (0, 30), (1, 20), (1, 30)]
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 19]


def test_evaluations_that_lag_behind_are_no_other_attempt(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """Only a metric that goes backwards itself indicates a resume."""
    imports(table("10,0.5,\n20,0.4,\n10,,0.6\n20,,0.5\n"))

    assert len(only_run(tmp_path).info.attempts) == 1


def test_a_file_that_begins_anew_holds_several_runs(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """Each has its own id, which stays when the file grows."""
    first = imports(table("1,0.5,\n2,0.4,\n1,0.6,\n2,0.3,\n"))

    second = imports(table("1,0.5,\n2,0.4,\n1,0.6,\n2,0.3,\n3,0.2,\n"))

    assert [outcome.run_id for outcome in first] == [outcome.run_id for outcome in second]
    assert [outcome.events for outcome in second] == [0, 1]
    assert [run.info.name.endswith("-2") for run in open_store(tmp_path / "runs")].count(True) == 1


def test_an_attempt_that_grows_later_goes_on_where_it_was(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """A later resume is found."""
    imports(table("10,0.5,\n20,0.4,\n"))
    imports(table("10,0.5,\n20,0.4,\n30,0.3,\n"))
    imports(table("10,0.5,\n20,0.4,\n30,0.3,\n20,0.35,\n"))

    run = only_run(tmp_path)
    assert [(e.attempt, e.seq, e.step) for e in run.events(attempts="all")] == [
        (0, 0, 10),
        (0, 1, 20),
        (0, 2, 30),
        (1, 0, 20),
    ]
    assert run.digest_faults() == []


def test_an_unfinished_last_line_is_waited_for_while_its_file_grows(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """A truncated number would be another number."""
    imports(table("1,0.5,\n2,0.41"), is_growing=True)
    assert [event.step for event in only_run(tmp_path).events()] == [1]

    imports(table("1,0.5,\n2,0.4125,\n"), is_growing=True)

    assert told(list(only_run(tmp_path).events()))[-1] == ("step_end", 2, {"loss": 0.4125})


CUT: dict[str, bytes] = {
    "a.csv": 'step,loss,note\n1,0.5,ok\n2,0.4375,\n3,12.25,"two\nlines"\n4,1e-3,größe\n14,0.25,"a ""b"""\n'.encode(),
    "b.csv": b'"step","loss"\r\n"1","0.5"\r\n"12","12.25"\r\n',
    "c.tsv": b"step\tloss\tval_loss\n1\t0.5\t\n2\t0.4375\t0.625\n",
    "d.csv": "step;loss\n1;0.5\n2;12.25\n".encode("utf-16"),
    "e.log": "größe\nstep 1 loss 0.5\nstep 12/300 loss 12.25 größe 3\nstep 13 loss 0.25 time:12.5ms\n".encode(),
    "trainer_state.json": (
        b'{"log_history": [{"step": 1, "loss": 0.5}, {"step": 12, "eval_loss": 12.25}],\n'
        b'"global_step": 12, "max_steps": 12}\n'
    ),
    "f.jsonl": '{"step": 1, "loss": 0.5}\n{"step": 12, "eval": {"größe": 12.25}, "note": "größe"}\n'.encode(),
}


@pytest.mark.parametrize("name", CUT)
def test_a_source_cut_at_any_byte_and_completed_is_the_whole_source(tmp_path: Path, name: str) -> None:
    """Half of a number is another number: an unfinished last line is left out until it is whole."""
    content = CUT[name]
    kind = {".log": "text", ".jsonl": "jsonl", ".json": "trainer_state"}.get(Path(name).suffix, "table")
    whole = imported_from(tmp_path / "whole", name, kind, content)
    assert len(whole) > 1

    for end in range(len(content)):
        begun = imported_from(tmp_path / f"cut-{end}", name, kind, content[:end])
        completed = imported_from(tmp_path / f"cut-{end}", name, kind, content)

        assert begun == whole[: len(begun)], content[:end]
        assert completed == whole, content[:end]


#: Steps with values of a training and, here and there, of an evaluation and a note. A step may go backwards.
ROWS = st.lists(
    st.tuples(
        st.integers(0, 120),
        st.floats() | st.integers(-99, 9999).map(float),
        st.none() | st.floats(),
        st.none() | st.text(st.sampled_from('aä",;:\n ')),
    ),
    min_size=2,
    max_size=6,
    unique_by=lambda row: row[0],
)


def as_csv(rows: Rows, newline: str, separator: str = ",") -> str:
    """Write rows as a table."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, lineterminator=newline)
    writer.writerow(("step", "loss", "val_loss", "note"))
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return file.getvalue()


def as_json_lines(rows: Rows, newline: str) -> str:
    """Write rows as objects."""
    names = ("step", "loss", "val_loss", "note")
    return "".join(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + newline for row in rows)


def as_text(rows: Rows, newline: str) -> str:
    """Write rows as lines of a log; a note becomes a line of its own."""
    lines = [f"step {step}/120 loss: {loss!r} | val_loss: {val or 0.0!r}" for step, loss, val, _ in rows]
    return "".join(f"größe {index}{newline}{line}{newline}" for index, line in enumerate(lines))


WRITERS: dict[str, Callable[[Rows, str], str]] = {
    "a.csv": as_csv,
    "a.tsv": partial(as_csv, separator="\t"),
    "a.jsonl": as_json_lines,
    "a.log": as_text,
}


@examples(50)
@given(
    st.sampled_from(sorted(WRITERS)),
    ROWS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=3),
)
def test_a_source_that_grows_by_any_bytes_never_holds_a_wrong_value_and_ends_whole(
    name: str, rows: Rows, newline: str, encoding: str, cuts: list[tuple[float, bool]]
) -> None:
    """Each import of a part, with ``--follow`` or without, holds the first events of the whole source, bit for bit."""
    content = WRITERS[name](rows, newline).encode(encoding)
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder, name), Path(folder, "runs")
        path.write_bytes(content)
        import_as_found(path, Path(folder, "whole"))
        whole = bits_of(Path(folder, "whole"))
        for share, is_growing in sorted(cuts):
            path.write_bytes(content[: int(share * len(content))])
            import_as_found(path, store, is_growing=is_growing)
            for part, events in bits_of(store).items():
                assert events == whole[part][: len(events)]

        path.write_bytes(content)
        outcomes = import_as_found(path, store)

        assert [outcome.problem for outcome in outcomes] == [None] * len(whole)
        assert bits_of(store) == whole


def import_as_found(path: Path, store: Path, *, is_growing: bool = False) -> list[Outcome]:
    """Import a file as ``auto`` does."""
    return list(import_sources(store, find_sources([path], all_readers()).sources, ReadOptions(is_growing=is_growing)))


def bits_of(store: Path) -> dict[str, list[str]]:
    """Return the events of each run of a store, with all attempts, as text that distinguishes every value."""
    runs = list(open_store(store)) if store.is_dir() else []
    return {
        run.run_id: [
            repr((e.attempt, e.kind, e.step, dict(e.metrics), dict(e.attrs))) for e in run.events(attempts="all")
        ]
        for run in runs
    }


def imported_from(folder: Path, name: str, kind: str, content: bytes) -> list[tuple[Any, ...]]:
    """Import a file. Return the events of its run. Its digests are valid, and a whole file has no problem."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    outcomes = list(
        import_sources(folder / "runs", find_sources([folder / name], [reader_of(kind)]).sources, ReadOptions())
    )
    runs = list(open_store(folder / "runs")) if (folder / "runs").is_dir() else []
    assert all(run.digest_faults() == [] for run in runs)
    assert [outcome.problem for outcome in outcomes if content == CUT[name]] in ([], [None])
    return [(e.kind, e.step, dict(e.metrics), dict(e.attrs)) for run in runs for e in run.events()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "step,loss\n1,0.5\n2,0.4\n3,0.3"),
        ("a.csv", 'step,note\n1,0.5\n2,0.25\n3,"two\nlines'),
        ("a.log", "step 1 loss 0.5\nstep 2 loss 0.4\nstep 3 loss 0.3"),
    ],
)
def test_an_unfinished_last_line_is_left_out_and_told(
    tmp_path: Path, imports: Imports, name: str, content: str
) -> None:
    """The warning says how to go on if the file is complete."""
    (tmp_path / name).write_text(content)
    (outcome,) = imports(tmp_path / name)
    assert outcome.problem is not None
    assert "no line end, so it may be unfinished (append a newline if the file is complete)" in outcome.problem
    assert [event.step for event in only_run(tmp_path).events()] == [1, 2]

    (tmp_path / name).write_text(content + '"\n' * ('"' in content) + "\n")
    (outcome,) = imports(tmp_path / name)

    assert outcome.problem is None
    assert [event.step for event in only_run(tmp_path).events()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '"step","loss"\n"1","0.5"\n"2","0.25"'),
        ("a.jsonl", '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}'),
        ("a.log", "step 1 loss 0.5\nstep 2 loss 0.25\nDone."),
    ],
)
def test_a_last_line_that_is_whole_without_a_line_end_is_imported(
    tmp_path: Path, imports: Imports, name: str, content: str
) -> None:
    """A quoted number and a closed object cannot become longer."""
    (tmp_path / name).write_text(content)

    (outcome,) = imports(tmp_path / name)

    assert outcome.problem is None
    assert [event.step for event in only_run(tmp_path).events()] == [1, 2]


def test_an_unfinished_value_of_mlflow_is_left_out_and_told(tmp_path: Path, imports: Imports) -> None:
    """Half of a step is another step."""
    run = tmp_path / "mlruns" / "0" / "run"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("artifact_uri: x\nrun_id: run\nstart_time: 1700000000000")
    (run / "metrics" / "loss").write_text("1700000000000 0.5 1\n1700000001000 0.25 1")
    (outcome,) = imports(tmp_path / "mlruns")
    assert outcome.problem is not None
    assert "loss, line 2: no line end" in outcome.problem

    (run / "metrics" / "loss").write_text("1700000000000 0.5 1\n1700000001000 0.25 12\n")
    (outcome,) = imports(tmp_path / "mlruns")

    assert outcome.problem is None
    assert [event.step for event in only_run(tmp_path).events()] == [1, 12]


def test_a_run_says_where_it_came_from(tmp_path: Path, imports: Imports, table: Callable[[str], Path]) -> None:
    """The source holds kind, path, digest, and its problem, if any."""
    path = table("1,0.5,\nx,0.4,\n")

    (outcome,) = imports(path)

    source = open_run(tmp_path / "runs" / outcome.run_id).info.source
    assert source is not None
    assert (source["kind"], source["path"]) == ("table", str(path))
    assert len(source["sha256"]) == 64
    assert (
        source["problem"]
        == f"{path}: 1 row was skipped; the first is line 3: no step number in 'x'. Everything else was imported"
    )


def test_a_metric_can_be_given_the_name_that_policies_use(
    tmp_path: Path, imports: Imports, table: Callable[[str], Path]
) -> None:
    """The renaming is permanent: the run keeps it when its source grows, whatever later imports request."""
    imports(table("1,0.5,0.6\n"), renamed={"val_loss": "eval_loss"})
    (grown,) = imports(table("1,0.5,0.6\n2,0.4,0.7\n"))

    assert grown.problem is None
    assert only_run(tmp_path).series("eval_loss", kind="evaluate")["value"].to_pylist() == [0.6, 0.7]
    assert (only_run(tmp_path).info.source or {})["renamed"] == {"val_loss": "eval_loss"}


def test_of_two_metrics_of_an_event_that_are_to_have_one_name_the_first_has_it() -> None:
    """The other keeps its own name, as does a metric whose new name exists already; the rest are renamed."""
    fact = Fact("evaluate", 1, {"val": 0.5, "dev": 0.25, "acc": 0.75, "top1": 1.0})
    renamed = {"val": "eval_loss", "dev": "eval_loss", "acc": "accuracy", "top1": "acc"}
    (named,) = with_names(iter([fact]), renamed)

    assert named.metrics == {"eval_loss": 0.5, "dev": 0.25, "accuracy": 0.75, "top1": 1.0}


def test_a_config_s_secrets_are_not_imported(tmp_path: Path, imports: Imports) -> None:
    """Recording a run redacts them too."""
    folder = tmp_path / "exp" / "abc"
    (folder / "metrics").mkdir(parents=True)
    (folder / "params").mkdir()
    (folder / "meta.yaml").write_text("artifact_uri: x\nrun_id: abc\nrun_name: r\nstatus: 3\n")
    (folder / "metrics" / "loss").write_text("1700000000000 0.5 1\n")
    (folder / "params" / "api_key").write_text("hunter2")

    imports(tmp_path / "exp")

    assert only_run(tmp_path).info.config == {"api_key": "[redacted]"}

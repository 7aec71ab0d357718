"""TensorBoard's event files of both versions become runs by folder, even if truncated or damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from event_files import STARTED_S, event, field, losses, record, simple, tensor, write_events

from steptape import open_run
from steptape.importers.discovery import find_sources, reader_of
from steptape.importers.importing import Outcome, import_sources
from steptape.importers.source import ReadOptions
from steptape.store.run import Run

Imports = Callable[[Path], list[tuple[Outcome, Run | None]]]

NAME = "events.out.tfevents.1767323045.host"


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    """Import a path and return the outcomes, each with its run."""

    def run(path: Path) -> list[tuple[Outcome, Run | None]]:
        store = tmp_path / "store"
        sources = find_sources([path], [reader_of("tensorboard")]).sources
        outcomes = list(import_sources(store, sources, ReadOptions()))
        return [(outcome, open_run(store / outcome.run_id) if outcome.run_id else None) for outcome in outcomes]

    return run


def only(imports: Imports, path: Path) -> Run:
    """Return the one run of a path, imported without a problem."""
    ((outcome, run),) = imports(path)
    assert outcome.problem is None
    assert run is not None
    return run


def values(run: Run, metric: str) -> list[tuple[int, float]]:
    """Return steps and values of a metric."""
    return [(event.step, event.metrics[metric]) for event in run.events(attempts="all") if metric in event.metrics]


def test_a_value_of_version_1_is_the_float_that_it_is(tmp_path: Path, imports: Imports) -> None:
    """Single precision is preserved exactly, infinities included; a step may be negative."""
    third = struct.unpack("<f", struct.pack("<f", 1 / 3))[0]
    path = write_events(tmp_path / "run" / NAME, losses([1 / 3, float("inf")], first_step=-1))

    assert values(only(imports, path), "loss") == [(-1, third), (0, float("inf"))]


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"\x08\x01" + field(4, struct.pack("<f", 0.5)), 0.5),
        (b"\x08\x02" + field(4, struct.pack("<d", 0.1)), 0.1),
        (b"\x08\x01" + field(5, struct.pack("<f", 0.25)), 0.25),
        (b"\x08\x02" + field(6, struct.pack("<d", 1e300)), 1e300),
        (b"\x08\x09" + field(10, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), -1.0),
        (b"\x08\x13" + field(4, struct.pack("<e", 1.5)), 1.5),
        (b"\x08\x0e" + field(4, b"\xc0\x3f"), 1.5),
        (b"\x08\x13\x68\x80\x78", 1.0),
    ],
    ids=["float", "double", "float_val", "double_val", "int64_val", "half", "bfloat16", "half_val"],
)
def test_a_tensor_of_one_number_is_a_value(tmp_path: Path, imports: Imports, content: bytes, value: float) -> None:
    """Version 2 stores any numeric type."""
    path = write_events(tmp_path / "run" / NAME, [event(3, STARTED_S, tensor("loss", content, "scalars"))])

    assert values(only(imports, path), "loss") == [(3, value)]


def test_tensors_of_other_plugins_are_no_values(tmp_path: Path, imports: Imports) -> None:
    """Only a tag's first event names its plugin."""
    number = b"\x08\x01" + field(4, struct.pack("<f", 0.5))
    events = [event(1, STARTED_S, tensor("text", number, "text")), event(2, STARTED_S, tensor("text", number))]
    path = write_events(tmp_path / "run" / NAME, [*events, *losses([0.5])])

    assert only(imports, path).metrics() == ["loss"]


def test_values_of_one_step_are_one_update_and_one_evaluation(tmp_path: Path, imports: Imports) -> None:
    """Each event has the wall clock of its last value, and the time since the first."""
    events = [
        event(5, STARTED_S, simple("train/loss", 1.0)),
        event(5, STARTED_S + 1, simple("train/lr", 0.5)),
        event(5, STARTED_S + 9, simple("eval/loss", 2.0)),
    ]
    run = only(imports, write_events(tmp_path / "run" / NAME, events))

    assert [(e.kind, e.step, dict(e.metrics), e.elapsed_ns) for e in run.events()] == [
        ("step_end", 5, {"train/loss": 1.0, "train/lr": 0.5}, 0),
        ("evaluate", 5, {"eval/loss": 2.0}, 8_000_000_000),
    ]
    assert run.info.last.started_ns == (int(STARTED_S) + 1) * 1_000_000_000


@pytest.mark.parametrize("tag", ["metrics/mAP50(B)", "bbox/AP", "Loss/test", "ptl/val_loss"])
def test_results_without_a_first_word_for_held_out_data_are_evaluations(
    tmp_path: Path, imports: Imports, tag: str
) -> None:
    """They are where the same tool writes a table, too."""
    events = [event(1, STARTED_S, simple("train/box_loss", 1.0)), event(1, STARTED_S + 1, simple(tag, 0.5))]
    run = only(imports, write_events(tmp_path / "run" / NAME, events))

    assert [(e.kind, dict(e.metrics)) for e in run.events()] == [
        ("step_end", {"train/box_loss": 1.0}),
        ("evaluate", {tag: 0.5}),
    ]


def test_each_folder_of_a_tree_is_a_run(tmp_path: Path, imports: Imports) -> None:
    """Its name is the path below the imported folder."""
    write_events(tmp_path / "logs" / "a" / NAME, losses([1.0]))
    write_events(tmp_path / "logs" / "b" / "c" / NAME, losses([2.0]))

    assert [outcome.name for outcome, _ in imports(tmp_path / "logs")] == ["a", "b/c"]


def test_files_of_one_folder_are_one_run_and_a_resume_its_next_attempt(tmp_path: Path, imports: Imports) -> None:
    """The second file begins before the first one's end."""
    write_events(tmp_path / "run" / f"{NAME}.0", losses([1.0, 0.9, 0.8, 0.7]))
    later = [event(step, STARTED_S + 100 + step, simple("loss", 0.5)) for step in (3, 4)]
    write_events(tmp_path / "run" / f"{NAME}.1", later)

    run = only(imports, tmp_path / "run")

    assert [(e.attempt, e.step) for e in run.events()] == [(0, 1), (0, 2), (1, 3), (1, 4)]


def test_a_file_that_begins_where_the_first_began_is_another_run(tmp_path: Path, imports: Imports) -> None:
    """Two trainings wrote into one folder."""
    write_events(tmp_path / "run" / f"{NAME}.0", losses([1.0, 0.9]))
    write_events(tmp_path / "run" / f"{NAME}.1", [event(1, STARTED_S + 100, simple("loss", 0.5))])

    assert [outcome.steps for outcome, _ in imports(tmp_path / "run")] == [2, 1]


def test_the_two_folders_of_keras_are_one_run(tmp_path: Path, imports: Imports) -> None:
    """Training and validation log the same tags."""
    write_events(tmp_path / "fit" / "train" / f"{NAME}.v2", losses([1.0, 0.9], "epoch_loss"))
    write_events(tmp_path / "fit" / "validation" / f"{NAME}.v2", losses([1.5, 1.4], "epoch_loss"))

    run = only(imports, tmp_path / "fit")

    assert [(e.kind, e.step, *e.metrics) for e in run.events()] == [
        ("step_end", 1, "train/epoch_loss"),
        ("evaluate", 1, "validation/epoch_loss"),
        ("step_end", 2, "train/epoch_loss"),
        ("evaluate", 2, "validation/epoch_loss"),
    ]


def test_a_file_that_is_cut_short_keeps_its_whole_records(tmp_path: Path, imports: Imports) -> None:
    """The problem names its end; a flipped bit is treated alike."""
    path = write_events(tmp_path / "run" / NAME, losses([1.0, 0.9, 0.8]))
    path.write_bytes(path.read_bytes()[:-3])
    ((outcome, run),) = imports(path)

    assert outcome.problem is not None
    assert "the file ends inside a record" in outcome.problem
    assert run is not None
    assert values(run, "loss") == [(1, 1.0), (2, pytest.approx(0.9))]


def test_a_record_whose_checksum_differs_ends_the_file(tmp_path: Path, imports: Imports) -> None:
    """The position of later records cannot be trusted."""
    path = write_events(tmp_path / "run" / NAME, losses([1.0, 0.9, 0.8]))
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    ((outcome, run),) = imports(path)

    assert outcome.problem is not None
    assert f"{path} @ byte" in outcome.problem
    assert run is not None
    assert len(values(run, "loss")) == 2


def test_a_file_without_a_scalar_is_told_of(tmp_path: Path, imports: Imports) -> None:
    """It holds graphs, pictures or nothing yet."""
    path = write_events(tmp_path / "run" / NAME, [])
    ((outcome, run),) = imports(path)

    assert run is None
    assert outcome.problem == f"{path}: these event files hold no scalars"


def test_a_record_that_is_no_event_is_our_error(tmp_path: Path, imports: Imports) -> None:
    """Its checksum is right, its content is wrong."""
    path = write_events(tmp_path / "run" / NAME, [])
    path.write_bytes(path.read_bytes() + record(b"\x0f\xff\xff"))
    ((outcome, _),) = imports(path)

    assert outcome.problem == f"{path}: not a protocol buffer: wire type 7"


@pytest.mark.parametrize(
    ("training", "held_out", "word"),
    [
        *(("train", word, word) for word in ("val", "valid", "validation", "eval", "test", "dev")),
        *(("Train", "Val", "val"), ("training", "testing", "testing")),
        *((".", "eval", "eval"), (".", "validation", "validation"), (".", "eval_holdout", "eval_holdout")),
        *(("Loss_train", "Loss_val", "val"), ("mlp_train", "mlp_test", "test"), ("train_0", "test_0", "test")),
    ],
)
@pytest.mark.parametrize("has_own", [False, True])
def test_folders_of_training_and_held_out_data_are_one_run(
    tmp_path: Path, imports: Imports, training: str, held_out: str, word: str, *, has_own: bool
) -> None:
    """Also where the run's folder has values of its own, as below ``add_scalars`` or a learning rate."""
    fit = tmp_path / "logs" / "fit"
    write_events(fit / training / NAME, losses([1.0, 0.75]))
    write_events(fit / held_out / NAME, losses([1.5, 1.25]))
    if has_own and training != ".":
        write_events(fit / NAME, losses([0.5, 0.25], "lr"))

    run = only(imports, tmp_path / "logs")

    named = "loss" if training == "." else "train/loss"
    assert [(e.step, e.metrics[named]) for e in run.events() if e.kind == "step_end"] == [(1, 1.0), (2, 0.75)]
    assert [(e.kind, e.step, dict(e.metrics)) for e in run.events() if e.kind == "evaluate"] == [
        ("evaluate", 1, {f"{word}/loss": 1.5}),
        ("evaluate", 2, {f"{word}/loss": 1.25}),
    ]
    assert ("lr" in run.metrics()) == (has_own and training != ".")


def test_pairs_of_several_runs_in_one_folder_stay_apart(tmp_path: Path, imports: Imports) -> None:
    """Each pair is a run. A folder that may be a trial is one of its own."""
    for folder in ("mlp_train", "mlp_val", "cnn_train", "cnn_val", "test_lr0.1"):
        write_events(tmp_path / "logs" / folder / NAME, losses([1.0]))

    assert [(outcome.name, outcome.evaluated) for outcome, _ in imports(tmp_path / "logs")] == [
        ("cnn_train", ("val/loss",)),
        ("mlp_train", ("val/loss",)),
        ("test_lr0.1", ()),
    ]


def test_a_folder_of_held_out_data_alone_holds_evaluations(tmp_path: Path, imports: Imports) -> None:
    """The word leads its tags, unless they say what they are."""
    write_events(tmp_path / "a" / "eval" / NAME, losses([1.0]))
    write_events(tmp_path / "b" / "val" / NAME, [event(1, STARTED_S, simple("val_loss", 1.0))])

    assert [outcome.evaluated for outcome, _ in imports(tmp_path)] == [("eval/loss",), ("val_loss",)]

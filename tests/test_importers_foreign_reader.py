"""A third-party reader that fails in any way is reported, and everything else is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from steptape import open_run
from steptape.importers.discovery import ForeignReader, all_readers, find_sources, signature
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.source import Fact, ImportedRun, ReadOptions, SingleFile


class Sound(SingleFile):
    """A correct reader: each word after MINE in a file that begins with it is a loss."""

    kind = "mine"
    title = "files of mine"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Recognise a file by its first word."""
        return head.startswith(b"MINE")

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:  # noqa: ARG002
        """Yield one run per file."""
        yield ImportedRun(self.facts(files[0]))

    def facts(self, path: Path) -> Iterator[Fact]:
        """Yield one step per word."""
        for step, text in enumerate(path.read_text(encoding="utf-8").split()[1:], start=1):
            yield Fact("step_end", step, {"loss": float(text)})


class FailsToRecognise(Sound):
    """A reader that indexes bytes beyond the head."""

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Raise IndexError."""
        return head[10**6] == 0


class FailsToPlace(Sound):
    """A reader that knows the source of no file."""

    def source_of(self, path: Path) -> Path:
        """Raise KeyError."""
        places: dict[Path, Path] = {}
        return places[path]


class FailsBeside(Sound):
    """A reader that looks for files in a place without any."""

    def beside(self, path: Path) -> Sequence[Path]:
        """List a folder that is a file."""
        return list((path / "beside").iterdir())


class EndsPython(Sound):
    """A reader that exits Python, as a library without its licence does."""

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:  # noqa: ARG002
        """Exit."""
        sys.exit("no licence")


class YieldsNoRun(Sound):
    """A reader that yields facts instead of runs."""

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[Any]:  # noqa: ARG002
        """Yield facts."""
        yield from self.facts(files[0])


class YieldsNoNumber(Sound):
    """A reader that yields a list as a loss."""

    def facts(self, path: Path) -> Iterator[Any]:  # noqa: ARG002
        """Yield one fact."""
        yield Fact("step_end", 1, {"loss": [0.5]})  # type: ignore[dict-item]  # That is its fault.


class YieldsNoStatus(Sound):
    """A reader with an unknown status of the run."""

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:  # noqa: ARG002
        """Yield one run."""
        yield ImportedRun(self.facts(files[0]), status="done")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A file for the reader, one that breaks it, and a table."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text("MINE 0.5 0.25")
    (folder / "b.log").write_text("MINE 0.5 half 0.25")
    (folder / "c.csv").write_text("step,loss\n1,0.5\n")
    return folder


def imported(logs: Path, reader: Sound) -> list[Outcome]:
    """Import everything in the folder and return the outcomes."""
    found = find_sources([logs], [ForeignReader(reader), *all_readers()])
    assert [signature(source) for source in found.sources]
    failed = [Outcome(State.FAILED, "", Path(problem.where), problem=str(problem)) for problem in found.problems]
    return [*failed, *import_sources(logs.parent / "runs", found.sources, ReadOptions())]


def test_what_a_reader_told_before_it_failed_is_kept(logs: Path) -> None:
    """The problem names file, reader, error and place, and the later files are imported."""
    whole, broken, table = imported(logs, Sound())

    assert (whole.kind, whole.state, whole.problem) == ("mine", "new", None)
    assert (broken.state, broken.steps) == ("new", 1)
    assert str(broken.problem).startswith(f"{logs / 'b.log'}: the reader 'mine' failed (ValueError(")
    assert "half" in str(broken.problem)
    assert f"in {Path(__file__).name}:" in str(broken.problem)
    assert (table.kind, table.state) == ("table", "new")
    assert open_run(logs.parent / "runs" / broken.run_id).series("loss")["value"].to_pylist() == [0.5]


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (FailsToPlace(), "KeyError"),
        (FailsBeside(), "NotADirectoryError"),
        (EndsPython(), "no licence"),
        (YieldsNoRun(), "Fact is not an ImportedRun"),
        (YieldsNoNumber(), "TypeError"),
        (YieldsNoStatus(), "unknown status: 'done'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Sound) else "",
)
def test_a_reader_that_fails_in_any_way_is_told_of_for_each_of_its_files(logs: Path, reader: Sound, said: str) -> None:
    """The table after them is imported."""
    *failed, table = imported(logs, reader)

    assert [(outcome.path, outcome.state) for outcome in failed] == [
        (logs / "a.log", "failed"),
        (logs / "b.log", "failed"),
    ]
    assert all("the reader 'mine' failed (" in str(outcome.problem) for outcome in failed)
    assert all(said in str(outcome.problem) for outcome in failed)
    assert (table.kind, table.state) == ("table", "new")
    assert [path.name for path in (logs.parent / "runs").iterdir()] == [table.run_id]


def test_a_reader_that_cannot_recognise_anything_is_told_of_once(logs: Path) -> None:
    """The readers after it are tried."""
    failed, table = imported(logs, FailsToRecognise())

    assert failed.path == logs / "a.log"
    assert "the reader 'mine' failed (IndexError(" in str(failed.problem)
    assert "; 2 more files alike. " in str(failed.problem)
    assert (table.kind, table.state) == ("table", "new")

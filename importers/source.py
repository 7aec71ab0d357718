"""Defines the interface of readers: a reader yields runs, and each run its facts in the order of the training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..store.run_info import Plan


class Fact(NamedTuple):
    """One event of an imported run, before it has a position in a log.

    Attributes:
        kind: Kind of the event, one of ``steptape.store.LOOP_KINDS``.
        step: Optimizer updates finished, as the source counts them.
        metrics: Numbers by name. NaN is a value.
        epoch: Epochs finished; None when the source does not record it.
        time_ns: Wall clock, nanoseconds since 1970 (UTC); 0 when the source has none.
        elapsed_ns: Nanoseconds since the attempt began, where the source counts them itself. None derives them from the
            wall clock, if there is one.
        attrs: Everything that is not a number.
        attempt: Attempt of the run, from 0, as far as the source shows it.
    """

    kind: str
    step: int
    metrics: Mapping[str, float] = {}
    epoch: float | None = None
    time_ns: int = 0
    elapsed_ns: int | None = None
    attrs: Mapping[str, Any] = {}
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """One run of a source.

    Attributes:
        facts: Its facts, in order; consume them before asking for the source's next run. A ``TelemetryError`` raised in
            between says what is wrong from there on; the facts before it are kept.
        identity: Distinguishes the run from others of its source, now and after the source has grown; empty where a
            source is one run.
        name: Its name in the source; empty where it has only the source's name.
        group, tags, config: As in ``run.json``.
        plan: The planned length of the training, where the source has it.
        status: How the run ended, one of ``steptape.store.run_info.STATUSES``; ``running`` where the source says that
            it has not ended, None where it does not say.
        started_ns, ended_ns: Wall clock; None to take it from the facts.
        failure: The exception that ended it, where the source has it.
        objective: The metric of ``evaluate`` events that the source optimises, and ``min`` or ``max``; None where the
            source does not say.
        nan_filtered: Metrics whose tool replaces NaN and infinities before it logs them, as far as the source says.
        step_unit: What its steps count: ``updates``, ``epochs``, or the name of the source's counter; empty for the
            steps of the kind of source, as in ``wandb steps``.
    """

    facts: Iterator[Fact]
    identity: str = ""
    name: str = ""
    group: str | None = None
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    status: str | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    failure: dict[str, str] | None = None
    objective: tuple[str, str] | None = None
    nan_filtered: tuple[str, ...] = ()
    step_unit: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The user's options for reading a source.

    Attributes:
        pattern: Regular expression for a line of text; its named groups are the values, one of them ``step``.
        step_column: The column or key that counts the steps, for tables and histories.
        renamed: New metric names by the source's names, for runs imported for the first time. A run keeps its names
            when it is imported again.
        is_growing: Whether the source is still being written: an unfinished last line or record is no error then.
        run_column: The column or key that tells the runs of a table apart.
    """

    pattern: str | None = None
    step_column: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_growing: bool = False
    run_column: str | None = None


@runtime_checkable
class Reader(Protocol):
    """A reader for one kind of source.

    Attributes:
        kind: Its name on the command line.
        title: Description of the sources that it reads, for users.
    """

    kind: str
    title: str

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this kind. Must be quick, and must not raise.

        Args:
            path: The file.
            head: Its first 64 KiB.
        """
        ...

    def source_of(self, path: Path) -> Path:
        """Return the source of a recognised file: the file itself, or a folder whose files make one source."""
        ...

    def beside(self, path: Path) -> Iterable[Path]:
        """Return the companion files of a recognised file: when one of them changes, the source has changed."""
        ...

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of one source.

        Args:
            files: The source's files, sorted by name.
            options: What the user said about it.

        Raises:
            TelemetryError: The source cannot be read, or not beyond this point.
        """
        ...


@runtime_checkable
class OptionReader(Protocol):
    """A reader that can read more files when the user's options describe them, and says what a file lacks."""

    def could_read(self, path: Path, head: bytes, options: ReadOptions) -> bool:
        """Whether the reader can read a file that it does not recognise by itself.

        Args:
            path: The file.
            head: Its first 64 KiB.
            options: What the user said about it.

        Raises:
            UnreadableSource: The file has the form that it reads, but lacks something. The error names what is missing.
        """
        ...


class SingleFile:
    """Mixin for readers of single files: each file is a source of its own."""

    def source_of(self, path: Path) -> Path:
        """Return the file itself."""
        return path

    def beside(self, path: Path) -> Iterable[Path]:  # noqa: ARG002
        """Return nothing."""
        return ()

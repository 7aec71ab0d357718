"""Defines the interface of readers: a reader yields runs, and each run its facts in the order of the training.

A reader raises one kind of error. What it skips or misreads it collects, and raises one error for it at its end: a
silent omission would be a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from ..store.errors import TelemetryError
from ..store.plan import Plan


class UnreadableSource(TelemetryError):
    """A file is not of its kind, is truncated, or holds values that an event cannot."""


class RefusedRun(UnreadableSource):
    """A run that would mislead: nothing of it is imported."""


#: The unit of steps that are epochs.
EPOCHS: Final = "epochs"


class Proof(StrEnum):
    """How an import knows the step of a value that was logged with another count than the training's."""

    LOGGED = "logged"
    EPOCHS = "epochs"
    STEPS_PER_EPOCH = "steps_per_epoch"
    COUNTED = "counted"
    NONE = "none"


class StepAxis(NamedTuple):
    """What a series counts that counts something else than the training, and how its values got their steps.

    Attributes:
        reference: The series of the training that counts its steps.
        proof: ``LOGGED``: each value has the newest step of the training when it was logged. ``EPOCHS``: the last step
            of its epoch. ``STEPS_PER_EPOCH``: its count times a number that the user or the configuration gave.
            ``COUNTED``: the log has step 0 for all values, and they are counted. ``NONE``: nothing proves a step.
        last: Its own last count.
        steps: The training's last step.
    """

    reference: str
    proof: Proof
    last: int
    steps: int


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
        axis: What its source's step counts, if that is not the training, and how the event got its step.
    """

    kind: str
    step: int
    metrics: Mapping[str, float] = {}
    epoch: float | None = None
    time_ns: int = 0
    elapsed_ns: int | None = None
    attrs: Mapping[str, Any] = {}
    attempt: int = 0
    axis: StepAxis | None = None

    def on_axis(self, axis: StepAxis | None) -> Fact:
        """Return the event as one that was logged with another count: it finishes no update, unless all are counted."""
        if axis is None:
            return self
        is_update = self.kind == "step_end" and axis.proof is not Proof.COUNTED
        return self._replace(kind="log" if is_update else self.kind, axis=axis)


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
        plan: The planned length of the training, where the source has it; a function that returns it where only the
            facts say it, called once they are consumed.
        status: How the run ended, one of ``steptape.store.run_info.STATUSES``; ``running`` where the source says that
            it has not ended, None where it does not say.
        started_ns, ended_ns: Wall clock; None to take it from the facts.
        failure: The exception that ended it, where the source has it.
        objective: The metric of ``evaluate`` events that the source optimises, and ``min`` or ``max``; None where the
            source does not say.
        nan_filtered: Metrics whose tool replaces NaN and infinities before it logs them, as far as the source says.
        step_unit: What its steps count: ``updates``, ``epochs``, or the name of the source's counter; empty for the
            steps of the kind of source, as in ``wandb steps``.
        doubt: A sentence about what its steps or its configuration may not be; empty where nothing is doubtful.
    """

    facts: Iterator[Fact]
    identity: str = ""
    name: str = ""
    group: str | None = None
    tags: tuple[str, ...] = ()
    config: dict[str, object] = field(default_factory=dict)
    plan: Plan | Callable[[], Plan] = field(default_factory=Plan)
    status: str | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    failure: dict[str, str] | None = None
    objective: tuple[str, str] | None = None
    nan_filtered: tuple[str, ...] = ()
    step_unit: str = ""
    doubt: str = ""

    def known_plan(self) -> Plan:
        """Return the plan as far as the facts are consumed."""
        return self.plan if isinstance(self.plan, Plan) else self.plan()


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
        evaluations: Metrics of held-out data by the source's names, whatever these say. As for ``renamed``, a run that
            is imported again keeps what it had.
        steps_per_epoch: Steps of the training in one count of the series that count something else.
    """

    pattern: str | None = None
    step_column: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_growing: bool = False
    run_column: str | None = None
    evaluations: frozenset[str] = frozenset()
    steps_per_epoch: int | None = None


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


#: Suffixes that say what a file holds, not which run it is of. Some come with another one: ``0.monitor.csv``,
#: ``mlp.csv.gz``.
_KNOWN_SUFFIXES: Final = frozenset(
    [
        *(".csv", ".tsv", ".txt", ".log", ".out", ".err", ".json", ".jsonl", ".ndjson", ".parquet", ".db", ".sqlite"),
        *(".wandb", ".monitor", ".gz", ".bz2", ".xz", ".zst", ".zip"),
    ]
)


def stem_of(name: str) -> str:
    """Return a file's name without its known suffixes: dots may belong to it.

    >>> [stem_of(name) for name in ("mlp-lr0.003-s0.csv", "gpt.v2.csv.gz", "0.monitor.csv", "run.log", ".csv")]
    ['mlp-lr0.003-s0', 'gpt.v2', '0', 'run', '.csv']
    """
    stem, dot, suffix = name.rpartition(".")
    while stem and (dot + suffix).casefold() in _KNOWN_SUFFIXES:
        name = stem
        stem, dot, suffix = name.rpartition(".")
    return name


class SingleFile:
    """Mixin for readers of single files: each file is a source of its own."""

    def source_of(self, path: Path) -> Path:
        """Return the file itself."""
        return path

    def beside(self, path: Path) -> Iterable[Path]:  # noqa: ARG002
        """Return nothing."""
        return ()


# --- what is skipped or misread -------------------------------------------------------------------------------------

#: Text that may be a decimal number or one with grouped thousands; it is ambiguous.
_WITH_DECIMAL_COMMA: Final = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")


#: Reason to skip a last line: half of a number is another number.
UNFINISHED: Final = "no line end, so it may be unfinished (append a newline if the file is complete)"


#: What follows the rows that were skipped, if there were others.
REST_IMPORTED: Final = "Everything else was imported"

#: What precedes a damaged record.
BEGINNING_IMPORTED: Final = "The records before it were imported"


class Omissions:
    """Counter of a source's skipped rows; keeps the first one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._first = ""

    def add(self, place: str, why: str) -> None:
        """Count a skipped row.

        Args:
            place: Location of the row, such as ``line 12``.
            why: The reason.
        """
        self._count += 1
        self._first = self._first or f"{place}: {why}"

    def tell(self) -> None:
        """Raise an error if any row was skipped.

        Raises:
            UnreadableSource: At least one row was skipped.
        """
        if self._count:
            rows = "row was" if self._count == 1 else "rows were"
            raise UnreadableSource(
                f"{self._count} {rows} skipped; the first is {self._first}",
                where=self._where,
                fix=REST_IMPORTED,
            )


class DecimalCommas:
    """Detector for numbers with a decimal comma; keeps the first text of a source that looks like one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._first = ""

    def look_at(self, texts: Mapping[str, Any], line_number: int) -> None:
        """Check the values of a row that did not parse as numbers, by name."""
        if self._first:
            return
        for name, text in texts.items():
            if isinstance(text, str) and _WITH_DECIMAL_COMMA.fullmatch(text.strip()):
                self._first = f"{text.strip()!r} under {name!r} on line {line_number}"
                return

    def tell(self) -> None:
        """Raise an error if any decimal comma was found.

        Raises:
            UnreadableSource: At least one was found.
        """
        if self._first:
            what = f"numbers with a decimal comma were imported as text; the first is {self._first}"
            raise UnreadableSource(what, where=self._where, fix="Write them with a decimal point")


class RepeatedNames:
    """Counter of a source's lines that hold two values for one name; keeps the first one."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._first = ""

    def look_at(self, name: str, line_number: int) -> None:
        """Count a line; ``name`` is empty where no name is repeated."""
        if name:
            self._count += 1
            self._first = self._first or f"{name!r} on line {line_number}"

    def tell(self) -> None:
        """Raise an error if any name was repeated.

        Raises:
            UnreadableSource: At least one was.
        """
        if self._count:
            lines = "1 line holds" if self._count == 1 else f"{self._count} lines hold"
            raise UnreadableSource(
                f"{lines} two values for one name, and the first value was imported; the first name is {self._first}",
                where=self._where,
                fix="Describe the lines with --pattern to name both",
            )

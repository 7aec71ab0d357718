"""What every reader of other tools' logs yields: runs, and of each its facts in the order of the training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..store.plan import Plan


class Fact(NamedTuple):
    """One event of an imported run, before it has a place in a log.

    Attributes:
        kind: What sort of fact, one of ``steptape.store.LOOP_KINDS``.
        step: Optimizer updates finished, as the source counts them.
        metrics: Numbers by name. NaN is a value.
        epoch: Epochs finished; None when the source does not say.
        time_ns: Wall clock, nanoseconds since 1970 (UTC); 0 when the source has none.
        elapsed_ns: Nanoseconds since the attempt began, where the source counts them itself; None to have them from
            the wall clock, as far as there is one.
        attrs: What is not a number.
        attempt: Which process life of the run it belongs to, from 0, as far as the source shows it.
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
        facts: Its facts, in order. To be consumed before the source's next run is asked for. A ``TelemetryError``
            raised in between says what is wrong from there on; what came before is kept.
        identity: What tells it from the other runs of its source, now and when the source has grown; empty where a
            source is one run.
        name: What the source calls it; empty where it has no name but the source's.
        group, tags, config: As in ``run.json``.
        plan: What the training meant to do, where the source says it.
        status: How it ended, one of ``steptape.store.run_info.STATUSES``; None where the source does not say.
        started_ns, ended_ns: Wall clock; None where only the facts can tell.
        failure: What ended it, where the source says it.
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


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a person said about a source.

    Attributes:
        pattern: A regular expression whose named groups are the values of a line of text; one is called ``step``.
        step_column: The column or key that counts the steps, of tables and of histories.
        renamed: What metrics are to be called, by what the source calls them; for runs that are imported first. A run
            keeps its names when it is imported again.
        is_growing: The source is being written: its last line or record may be unfinished, which is no fault then.
    """

    pattern: str | None = None
    step_column: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_growing: bool = False


@runtime_checkable
class Reader(Protocol):
    """Reads one kind of source.

    Attributes:
        kind: Its name on the command line.
        title: What it reads, for people.
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
        """What a recognised file is a part of: itself, or the folder all of whose files make one source."""
        ...

    def beside(self, path: Path) -> Iterable[Path]:
        """Files that are read along with a recognised one: when one of them changes, the source has."""
        ...

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """The runs of one source.

        Args:
            files: Its files, sorted by name.
            options: What a person said about it.

        Raises:
            TelemetryError: Nothing of it can be read, or nothing more of it.
        """
        ...


class SingleFile:
    """What readers have in common each of whose files is a source by itself."""

    def source_of(self, path: Path) -> Path:
        """The file itself."""
        return path

    def beside(self, path: Path) -> Iterable[Path]:  # noqa: ARG002
        """Nothing."""
        return ()

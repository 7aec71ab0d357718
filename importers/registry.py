"""Which readers there are: ours and those of other packages, by the entry point group ``steptape.importers``."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple

from ..store.errors import TelemetryError
from .foreign_reader import ForeignReader
from .source import Reader

GROUP: Final = "steptape.importers"

#: The kind that stands for whichever reader recognises a file.
AUTO: Final = "auto"

#: In which order files are shown to readers: those that know theirs by a signature first, guesses last.
_ORDER: Final = ("tensorboard", "wandb", "optuna", "mlflow", "trackio", "trainer_state", "parquet", "table", "jsonl")
_LAST: Final = "text"


def all_readers() -> tuple[Reader, ...]:
    """All readers that can be had, in the order in which files are shown to them."""
    return tuple(sorted(_registered().by_kind.values(), key=lambda reader: (_place(reader.kind), reader.kind)))


def unusable_readers() -> tuple[TelemetryError, ...]:
    """What is wrong with the entry points that give no reader."""
    return tuple(_registered().problems.values())


def reader_of(kind: str) -> Reader:
    """The reader of a kind.

    Raises:
        TelemetryError: There is none, or it cannot be had.
    """
    registered = _registered()
    if kind in registered.by_kind:
        return registered.by_kind[kind]
    if kind in registered.problems:
        raise registered.problems[kind]
    raise TelemetryError(
        "nothing reads this kind", got=kind, fix=f"Kinds: {AUTO}, {', '.join(sorted(registered.by_kind))}"
    )


def _place(kind: str) -> int:
    """Ours by signature, then those of other packages, then text, which many a file looks like."""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER) + (kind == _LAST)


class _Registered(NamedTuple):
    """The entry points of the group.

    Attributes:
        by_kind: Readers.
        problems: Why others give none, by their names.
    """

    by_kind: dict[str, Reader]
    problems: dict[str, TelemetryError]


@functools.cache
def _registered() -> _Registered:
    registered = _Registered({}, {})
    for point in sorted(entry_points(group=GROUP), key=_is_foreign):
        try:
            reader = _loaded(point)
            if reader.kind in registered.by_kind or reader.kind == AUTO:
                raise TelemetryError(
                    "this reader is for a kind that has one", where=f"{GROUP}: {point.name}", got=reader.kind
                )
            registered.by_kind[reader.kind] = reader
        except TelemetryError as error:
            registered.problems[point.name] = error
    return registered


def _is_foreign(point: EntryPoint) -> bool:
    # Not its ``module``: of a value that names none, that cannot be had.
    return not point.value.startswith(f"{__name__.partition('.')[0]}.")


def _loaded(point: EntryPoint) -> Reader:
    # Whatever a foreign package does when it is imported, to exit included, is told as what it is: a reader that cannot
    # be had.
    try:
        reader = point.load()()
        if not isinstance(reader, Reader):
            raise TypeError("it lacks what a reader has")
        if not isinstance(reader.kind, str):
            raise TypeError("its kind is no text")
    except (Exception, SystemExit) as error:
        raise TelemetryError(f"this reader cannot be loaded ({error!r})", where=f"{GROUP}: {point.name}") from error
    return ForeignReader(reader) if _is_foreign(point) else reader

"""Loads the registered readers: built-in ones and those of other packages, from entry points ``steptape.importers``."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple

from ..store.errors import TelemetryError
from .foreign_reader import ForeignReader
from .source import Reader

GROUP: Final = "steptape.importers"

#: The kind that selects the first reader that recognises a file.
AUTO: Final = "auto"

#: Order of trying readers on a file: those that check a file signature first, guesses last.
_ORDER: Final = (
    *("tensorboard", "wandb", "optuna", "mlflow", "trackio", "trainer_state", "stable_baselines", "parquet", "mllog"),
    *("table", "json", "jsonl"),
)
_LAST: Final = "text"


def all_readers() -> tuple[Reader, ...]:
    """Return all usable readers, in the order of trying them on a file."""
    return tuple(sorted(_registered().by_kind.values(), key=lambda reader: (_place(reader.kind), reader.kind)))


def unusable_readers() -> tuple[TelemetryError, ...]:
    """Return the errors of the entry points that give no reader."""
    return tuple(_registered().problems.values())


def reader_of(kind: str) -> Reader:
    """Return the reader of a kind.

    Raises:
        TelemetryError: There is none, or it cannot be loaded.
    """
    registered = _registered()
    if kind in registered.by_kind:
        return registered.by_kind[kind]
    if kind in registered.problems:
        raise registered.problems[kind]
    raise TelemetryError(
        "no reader for this kind", got=kind, fix=f"Kinds: {AUTO}, {', '.join(sorted(registered.by_kind))}"
    )


def _place(kind: str) -> int:
    """Rank a kind: built-in readers first, then those of other packages, then text, which many files resemble."""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER) + (kind == _LAST)


class _Registered(NamedTuple):
    """The loaded entry points of the group.

    Attributes:
        by_kind: Readers by kind.
        problems: Errors of the entry points that give no reader, by entry point name.
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
                    "another reader already reads this kind", where=f"{GROUP}: {point.name}", got=reader.kind
                )
            registered.by_kind[reader.kind] = reader
        except TelemetryError as error:
            registered.problems[point.name] = error
    return registered


def _is_foreign(point: EntryPoint) -> bool:
    # Compares the value: ``EntryPoint.module`` fails for a value that names no module.
    return not point.value.startswith(f"{__name__.partition('.')[0]}.")


def _loaded(point: EntryPoint) -> Reader:
    # A foreign package may raise anything when it is imported, SystemExit included: report it as a reader that cannot
    # be loaded.
    try:
        reader = point.load()()
        if not isinstance(reader, Reader):
            raise TypeError("it lacks methods or attributes of a reader")
        if not isinstance(reader.kind, str):
            raise TypeError("its kind is not text")
    except (Exception, SystemExit) as error:
        raise TelemetryError(f"this reader cannot be loaded ({error!r})", where=f"{GROUP}: {point.name}") from error
    return ForeignReader(reader) if _is_foreign(point) else reader

"""Which readers there are: ours and those of other packages, by the entry point group ``steptape.importers``."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ..store import TelemetryError
from .source import Reader

GROUP: Final = "steptape.importers"

#: The kind that stands for whichever reader recognises a file.
AUTO: Final = "auto"

#: In which order files are shown to readers: those that know theirs by a signature first, guesses last.
_ORDER: Final = ("tensorboard", "wandb", "optuna", "mlflow", "trackio", "trainer_state", "parquet", "table", "jsonl")
_LAST: Final = "text"


@functools.cache
def readers() -> tuple[Reader, ...]:
    """All readers, in the order in which files are shown to them.

    Raises:
        TelemetryError: An entry point cannot be loaded, or two are for one kind.
    """
    loaded = [_loaded(point) for point in entry_points(group=GROUP)]
    kinds = [reader.kind for reader in loaded]
    for kind in kinds:
        if kinds.count(kind) > 1 or kind == AUTO:
            raise TelemetryError("two readers are for one kind", where=f"entry points {GROUP!r}", got=kind)
    return tuple(sorted(loaded, key=lambda reader: (_place(reader.kind), reader.kind)))


def reader_of(kind: str) -> Reader:
    """The reader of a kind.

    Raises:
        TelemetryError: There is none.
    """
    for reader in readers():
        if reader.kind == kind:
            return reader
    known = ", ".join(sorted(reader.kind for reader in readers()))
    raise TelemetryError("nothing reads this kind", got=kind, fix=f"Kinds: {AUTO}, {known}")


def _place(kind: str) -> int:
    """Ours by signature, then those of other packages, then text, which many a file looks like."""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER) + (kind == _LAST)


def _loaded(point: EntryPoint) -> Reader:
    # Whatever a foreign package does when it is imported is told as what it is: a reader that cannot be had.
    try:
        reader: Reader = point.load()()
    except Exception as error:
        raise TelemetryError(f"this reader cannot be loaded ({error!r})", where=f"{GROUP}: {point.name}") from error
    return reader

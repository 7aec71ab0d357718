"""Turns a recorder into one that does nothing: for debugging a loop, and for jobs that must leave no files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..store.errors import TelemetryError
from ..store.reading.tally import ProgressCounts
from .control import Control

#: The environment variable that disables recorders, as ``mode=`` does, and the value that does.
MODE_VARIABLE: Final = "STEPTAPE_MODE"
_DISABLED: Final = "disabled"


class DisabledWatch:
    """The watch of a disabled recorder: it attaches to nothing, and takes every call."""

    absent: Mapping[str, str] = {}
    is_closed = True
    level, every, prefix = "minimal", 1, ""

    def set_level(self, level: str | int) -> None:
        """Do nothing."""

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the loader."""
        return iter(loader)

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class DisabledSpan:
    """A span that records nothing."""

    def trace(self, path: Any) -> None:
        """Ignore the path of a trace."""

    def export_to(self, path: str | os.PathLike[str]) -> Callable[[Any], None]:
        """Return an ``on_trace_ready`` that only writes the trace."""
        return lambda profiler: profiler.export_chrome_trace(os.fspath(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Disabled:
    """The methods of a recorder without a run: it writes nothing and asks for nothing, and takes every call.

    They come before those of ``Recorder`` in the class of a disabled recorder.
    """

    control: Control
    is_closed = False
    operations: tuple[str, ...] = ()

    def _ignore(self, *_: Any, **__: Any) -> Control:
        return self.control

    def _pass(self, *_: Any, **__: Any) -> None:
        pass

    step = log = evaluate = save = late = event = epoch_begin = epoch_end = agree = _ignore
    annotate = at = declare = handle = load_state_dict = watch_stalls = watch_system = _pass

    def learning_rate(self, *_: Any) -> Callable[[float], float]:
        """Return what leaves every rate as it is."""
        return float

    def restore_points(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    def watch(self, *_: Any, **__: Any) -> DisabledWatch:
        """Return what watches nothing."""
        return DisabledWatch()

    def span(self, *_: Any, **__: Any) -> DisabledSpan:
        """Return a span that records nothing."""
        return DisabledSpan()

    def state_dict(self) -> dict[str, int | float | str | None]:
        """Return nothing: there is no run to resume."""
        return {}

    def close(self, *_: Any, **__: Any) -> None:
        """Count as closed."""
        self.is_closed = True

    fail = close

    @property
    def decides(self) -> bool:
        """False: there are no rules."""
        return False

    @property
    def progress(self) -> ProgressCounts:
        """Nothing: no call is counted."""
        return ProgressCounts()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def disable(recorder: Any, folder: Path, mode: str | None) -> bool:
    """Disable a recorder that is being constructed, if its mode or the environment says so.

    Args:
        recorder: The recorder. Its class changes.
        folder: The store, in which nothing is written.
        mode: The mode that the recorder is given.

    Returns:
        Whether it is disabled.

    Raises:
        TelemetryError: There is no such mode.
    """
    if not (mode := mode or os.environ.get(MODE_VARIABLE)):
        return False
    if mode != _DISABLED:
        raise TelemetryError(f"mode and {MODE_VARIABLE} must be {_DISABLED!r} or not set", got=mode)
    kind = type(recorder)
    own = {"folder": folder, "run_id": _DISABLED}  # A recorder with a run looks them up.
    recorder.__class__ = type(f"Disabled{kind.__name__}", (Disabled, kind), own)
    recorder.control = Control()
    return True

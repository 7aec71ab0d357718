"""Times the phases of a loop, such as evaluations and checkpoints, and records each as a ``span`` event at its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from .loop_values import path_text

if TYPE_CHECKING:
    import os

    from .calls.call_warnings import CallWarnings

#: Records the event of a span: its metrics, its attributes, and when it began.
RecordSpan: TypeAlias = "Callable[[dict[str, float], dict[str, str], int], None]"

logger = logging.getLogger("steptape")

#: Length limit of a name: a column of the run's tables has it.
_MOST_CHARACTERS: Final = 64

#: Names whose metric is another one: ``rec.watch`` records ``Time/step_seconds`` and its like at updates.
_RESERVED: Final = frozenset(("step", "data_wait"))

#: Names of a run above which the loop seems to number them. Each is a column.
_MOST_NAMES: Final = 100

#: The span whose end says whether a checkpoint was written.
_CHECKPOINT: Final = "checkpoint"


class SpanClock(threading.local):
    """The time that a thread has spent in spans. Each thread has values of its own.

    Attributes:
        depth: Spans that are open.
        began_ns: When the outermost of them began, on the monotonic clock.
        finished_ns: The total of those that have ended, nested ones counted once.
    """

    depth = 0
    began_ns = 0
    finished_ns = 0

    def begin(self, now_ns: int) -> None:
        """Count a span as open."""
        if not self.depth:
            self.began_ns = now_ns
        self.depth += 1

    def end(self, now_ns: int) -> None:
        """Count a span as finished. A span that another thread began counts in neither."""
        if self.depth:
            self.depth -= 1
            if not self.depth:
                self.finished_ns += now_ns - self.began_ns


class Spans:
    """The phases of the loops of one recorder. They outlast its attempts.

    Attributes:
        clock: The time in spans.
        open: The names of those that have begun and not ended, of all threads, oldest first.
    """

    def __init__(self) -> None:
        self.clock = SpanClock()
        self.open: list[str] = []
        self._names: set[str] = set()

    def total_ns(self) -> int:
        """Return the time that this thread has spent in spans so far, open ones included. Never decreases."""
        clock = self.clock
        return clock.finished_ns + (time.monotonic_ns() - clock.began_ns if clock.depth else 0)

    def accepted(self, name: Any, warnings: CallWarnings) -> str:
        """Return a name that a span may have; empty for a wrong one, which is warned of or raises with ``strict``."""
        if type(name) is str and name in self._names:
            return name
        fault = _fault_of(name) if isinstance(name, str) else "its name is no text"
        if fault:
            fix = 'Write a short name without a slash, such as rec.span("eval")'
            warnings.object_to(f"span: {fault}, so it is not recorded", got=name, fix=fix)
            return ""
        self._names.add(name)
        if len(self._names) == _MOST_NAMES:
            what = f"span: this run has {_MOST_NAMES} names of spans, and each is a metric"
            warnings.object_to(what, got=name, fix="Name phases, not their repetitions")
        return str(name)


def _fault_of(name: str) -> str:
    """Return what is wrong with a name; empty for a good one."""
    if not name.strip() or not name.isprintable() or "/" in name:
        return "its name cannot be part of a metric's"
    if len(name) > _MOST_CHARACTERS:
        return f"its name has more than {_MOST_CHARACTERS} characters"
    return "rec.watch records a metric of this name at updates" if name in _RESERVED else ""


class TimedSpan:
    """One phase of a loop, which a ``with`` block marks. Made by ``Recorder.span``.

    Args:
        name: The name of the phase; empty for one that is not recorded.
        spans: The spans of the recorder.
        record: Records the event of the span: its metrics, its attributes, and its begin on the monotonic clock.
        profiler: A running ``torch.profiler.profile``, or None.
    """

    __slots__ = ("_began_ns", "_name", "_range", "_record", "_spans", "_trace")

    def __init__(self, name: str, spans: Spans, record: RecordSpan, profiler: Any = None) -> None:
        self._name, self._spans, self._record = name, spans, record
        self._trace, self._began_ns = "", 0
        self._range = None if profiler is None else _profiler_range(name)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Link the trace that a profiler has written of this phase. Call it within the block; the last path counts."""
        self._trace = path_text(path)

    def export_to(self, path: str | os.PathLike[str]) -> Callable[[Any], None]:
        """Return an ``on_trace_ready`` for ``torch.profiler.profile`` that writes the trace there and links it.

        A profiler with a schedule calls it for each cycle, and the last trace is kept.
        """

        def export(profiler: Any) -> None:
            profiler.export_chrome_trace(path_text(path))
            self.trace(path)

        return export

    def __enter__(self) -> Self:
        if self._range is not None:
            self._range.__enter__()
        self._began_ns = now_ns = time.monotonic_ns()
        self._spans.clock.begin(now_ns)
        self._spans.open.append(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now_ns = time.monotonic_ns()
        self._spans.clock.end(now_ns)
        if self._name in self._spans.open:  # A block that is left twice, as by a generator, is open once.
            self._spans.open.remove(self._name)
        if self._range is not None:
            self._range.__exit__(kind, error, trace)
        if not self._name:
            return
        try:
            self._record(*self._event(now_ns, kind), self._began_ns)
        except Exception:
            if kind is None:
                raise
            logger.exception("the span %r could not be recorded", self._name)  # The loop's own exception passes on.

    def _event(self, now_ns: int, failed: type[BaseException] | None) -> tuple[dict[str, float], dict[str, str]]:
        metrics = {f"Time/{self._name}_seconds": (now_ns - self._began_ns) / 1e9}
        if self._name == _CHECKPOINT:
            metrics["Checkpoint/ok"] = 0.0 if failed else 1.0
        attrs = {"name": self._name}
        if failed is not None:
            attrs["failed"] = failed.__name__
        if self._trace:
            attrs["trace"] = self._trace
        return metrics, attrs


def _profiler_range(name: str) -> Any:
    """Return a range of this name for the trace of a running profiler."""
    from torch.profiler import record_function

    return record_function(name)

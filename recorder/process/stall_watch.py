"""Writes where a loop hangs: a thread looks at the journal, and records the stacks of all threads once it is silent.

A look reads a counter and a clock, about once a second. The loop itself does nothing for it. A silence is too long a
little before readers call the run stalled (``Pace``), so that they find the place. While a debugger holds the loop, and
while the process is stopped, no silence is counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from types import FrameType
from typing import Final, TypeAlias

from ...store.errors import shortened
from ...store.events import IS_OVER, SPANS, WHERE
from ...store.own_process import thread_frames
from ...store.redaction import redacted_text
from ...store.run_info import PACED_UPDATES, Pace

#: Writes an event with these attributes, within so many seconds; False if the log was locked for longer.
Write: TypeAlias = "Callable[[Mapping[str, object], float], bool]"

#: The share of the silence after which readers call a run stalled. Looks overestimate a step by up to a seventh.
_SHARE: Final = 0.8

#: Seconds between two looks: a share of the shortest silence, and never longer than this.
_LOOK_S: Final = 1.0
_LOOKS_A_SILENCE: Final = 10

#: Seconds that the event log's lock is awaited. The loop may hang while it holds it.
_LOCK_S: Final = 5.0

#: Most frames of a thread, the innermost; characters of one, and of the frames of all threads together.
_FRAMES: Final = 20
_FRAME_CHARACTERS: Final = 300
_CHARACTERS: Final = 16_000

#: Packages whose frames in a stack show that a debugger holds it, or runs the program.
_DEBUGGERS: Final = frozenset(("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"))

_NS_PER_S: Final = 1e9


class StallWatch:
    """The watch over the loop of one attempt. It ends with the attempt.

    Args:
        least_s: The shortest silence that is recorded, in seconds.
        reached: Returns the ``seq`` of the next event, and the step of the loop.
        write: Writes an event.
        is_over: Whether the attempt has ended, or is ending.
        loop: The thread that trains.
        spans: The names of the open spans, oldest first.

    Attributes:
        least_s: The same; it may change.
    """

    def __init__(
        self,
        least_s: float,
        reached: Callable[[], tuple[int, int]],
        write: Write,
        is_over: Callable[[], bool],
        *,
        loop: threading.Thread,
        spans: Sequence[str],
    ) -> None:
        self.least_s = least_s
        self._reached, self._write_event, self._is_over = reached, write, is_over
        self._loop, self._spans = loop, spans
        self._seq, self._step = reached()
        self._silent_s = self._without_step_s = self._longest_s = 0.0
        self._step_times_s: deque[float] = deque(maxlen=PACED_UPDATES)
        self._has_written = False
        threading.Thread(target=self._run, name="steptape-stalls", daemon=True).start()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._is_over():
            pause_s = min(_LOOK_S, self.least_s / _LOOKS_A_SILENCE)
            time.sleep(pause_s)
            now_s = time.monotonic()
            # A process that was stopped meanwhile, or held up by a C call, was not silent for all that time.
            self._look(min(now_s - looked_s, 2 * pause_s))
            looked_s = now_s

    def _look(self, passed_s: float) -> None:
        """Look whether the loop has recorded something within these seconds."""
        self._silent_s += passed_s
        self._without_step_s += passed_s
        seq, step = self._reached()
        if step > self._step:
            self._step_times_s.append(self._without_step_s / (step - self._step))
            self._step, self._without_step_s = step, 0.0
        if seq != self._seq:
            silent_s, self._silent_s, self._seq = self._silent_s, 0.0, seq
            self._longest_s = max(self._longest_s, silent_s)
            if self._has_written:
                self._has_written = False
                self._write({"silent_s": round(silent_s, 3), IS_OVER: True}, "the loop goes on", ())
        elif not self._has_written and self._is_too_long():
            self._write_stacks()

    def _is_too_long(self) -> bool:
        times = sorted(self._step_times_s)
        median_s = times[len(times) // 2] if times else 0.0
        ns = [int(seconds * _NS_PER_S) for seconds in (_SHARE * median_s, _SHARE * self._longest_s, self.least_s)]
        return Pace(0, *ns).is_stalled(int(self._silent_s * _NS_PER_S))

    def _write_stacks(self) -> None:
        frames = thread_frames()
        own = frames.get(self._loop.ident or 0)
        if own is not None and any(_package_of(frame) in _DEBUGGERS for frame in _innermost(own)):
            self._silent_s = 0.0
            return
        where = _place(self._loop, own)
        threads = [*_stacks(frames, self._loop)]
        attrs = {"silent_s": round(self._silent_s, 3), WHERE: where, "threads": threads}
        if spans := [name for name in [*self._spans] if name]:
            attrs[SPANS] = spans
        self._has_written = True
        self._write(attrs, where, threads[0]["frames"] if threads else ())

    def _write(self, attrs: dict[str, object], what: str, stack: object) -> None:
        """Write an event; what it says goes to stderr if the log cannot take it."""
        try:
            if self._write_event(attrs, _LOCK_S):
                self._seq = self._reached()[0]
                return
            why = "the loop hangs while it records"
        except Exception as error:  # No failure of the recorder is one of the training, and a thread has no caller.
            why = f"the event cannot be written ({type(error).__name__}: {error})"
        if not self._is_over():
            _complain(f"no event for {attrs['silent_s']} s at step {self._step}, and {why}: {what}", stack)


def _complain(text: str, stack: object) -> None:
    """Print to the descriptor of stderr: the thread that hangs may hold the locks of ``sys.stderr`` and ``logging``."""
    lines = [f"steptape: {text}", *(f"  {frame}" for frame in (stack if isinstance(stack, list) else ()))]
    with suppress(OSError):
        os.write(2, "".join(f"{line}\n" for line in lines).encode(errors="replace"))


def _stacks(frames: dict[int, FrameType], loop: threading.Thread) -> Iterator[dict[str, object]]:
    """Yield name and innermost frames of each thread but this one, that of the loop first, until there are too many."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    room = _CHARACTERS
    for ident in sorted(frames, key=lambda ident: ident != loop.ident):
        if ident == threading.get_ident():
            continue
        shown = [text for text, _ in zip(map(_text_of, _innermost(frames[ident])), range(_FRAMES), strict=False)]
        room -= sum(map(len, shown))
        if room < 0:
            return
        yield {"name": _shown(names.get(ident, f"thread {ident}")), "frames": shown}


def _place(loop: threading.Thread, frame: FrameType | None) -> str:
    """Return where the loop is: its innermost frame and, if that is a library's, the innermost one of its own code."""
    thread = "main thread" if loop is threading.main_thread() else f"thread {_shown(loop.name)}"
    if frame is None:
        return f"{thread} has ended"
    own = next((each for each in _innermost(frame) if not _is_of_library(each)), None)
    called = f", called from {_short(own)}" if own is not None and own is not frame else ""
    return f"{thread} in {_short(frame)}{called}"


def _innermost(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_of_library(frame: FrameType) -> bool:
    """Whether a frame is of an installed package, the standard library or this package."""
    file = frame.f_code.co_filename
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(PurePath(file).parts)
    is_standard = file.startswith(("<frozen ", f"{PurePath(os.__file__).parent}{os.sep}"))
    return is_installed or is_standard or _package_of(frame) == __name__.partition(".")[0]


def _text_of(frame: FrameType) -> str:
    """Return file, line and function. The source is not read: the disk that holds it may be what hangs."""
    return _shown(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")


def _short(frame: FrameType) -> str:
    return _shown(f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")


def _shown(text: str) -> str:
    return shortened(redacted_text(text), _FRAME_CHARACTERS)

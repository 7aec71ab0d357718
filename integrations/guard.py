"""Keeps failures of an integration out of the training that it records.

Hooks of an integration in; the same hooks out, whose failures are warnings.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from ..recorder.advice import OWN, Advice, advising
from ..recorder.recorder import Recorder
from ..store.errors import TelemetryError

logger = logging.getLogger("steptape")

#: What a framework keeps in a checkpoint: values of any type by name.
State: TypeAlias = dict[str, Any]

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


class Guard:
    """The guard of one integration, which it keeps as ``_guard``.

    Args:
        strict: Raise failures.
        advice: The calls that warnings of its recorders name.
    """

    def __init__(self, *, strict: bool, advice: Advice = OWN) -> None:
        self.is_strict: Final = strict
        self._advice = advice
        self._warned: set[str] = set()
        self._passed: BaseException | None = None

    def warn(self, message: str, about: str | None = None) -> None:
        """Log a warning, once per message; or once for what it is about."""
        if (about or message) not in self._warned:
            self._warned.add(about or message)
            logger.warning("%s", message)

    @contextlib.contextmanager
    def trying(self, failure: str) -> Iterator[None]:
        """Turn what the block raises into a warning.

        Args:
            failure: Says what failed and what follows.
        """
        try:
            yield
        except Exception as error:
            if self.is_strict or error is self._passed:
                raise
            # What it got may differ each time.
            self.warn(f"{failure}: {error!r}", about=f"{failure}: {getattr(error, 'what', repr(error))}")

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Let what the block raises reach the training, through all guarded calls."""
        try:
            yield
        except Exception as error:
            self._passed = error
            raise

    def opened(
        self,
        store: str | Path,
        resume: Mapping[str, Any] | None,
        arguments: Mapping[str, Any],
        *,
        anew: Mapping[str, Any] | None = None,
    ) -> Recorder:
        """Return the recorder of an attempt that resumes from a state, or of a new run if that cannot be resumed.

        What the recorder refuses reaches the training.

        Args:
            store: Folder of runs.
            resume: The state that a checkpoint keeps; None or empty without one.
            arguments: Further arguments of ``Recorder``. A ``resume`` among them counts instead.
            anew: Arguments of a new run alone, unless ``arguments`` has them.
        """
        with self.passing(), advising(self._advice):
            if resume and "resume" not in arguments:
                try:
                    return Recorder(store, **arguments, resume=resume)
                except TelemetryError as error:
                    if self.is_strict:
                        raise
                    self.warn(f"the run {resume.get('run_id')} cannot be resumed, so a new one begins: {error}")
            return Recorder(store, **{**(anew or {}), **arguments})


def guarded(hook: _Hook) -> _Hook:
    """Turn a failure of a method into a warning with its name, by the ``_guard`` of its object."""

    @functools.wraps(hook)
    def guarded_hook(self: Any, *arguments: Any, **named: Any) -> Any:
        with self._guard.trying(f"{hook.__name__.lstrip('_')} failed, and training continues"):
            return hook(self, *arguments, **named)

    return guarded_hook  # type: ignore[return-value]

"""Defines what a disabled recorder does: nothing. For debugging a loop, and for jobs that must leave no files."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ..store.errors import TelemetryError
from .control import Control

_DISABLED: Final = "disabled"


class Disabled:
    """The methods of a recorder without a run: it writes nothing and asks for nothing, and takes every call.

    They come before those of ``Recorder`` in the class of a disabled recorder.

    Attributes:
        folder: The store. Nothing is written there.
        run_id: ``disabled``.
    """

    def __init__(self, store: str | Path, **_: Any) -> None:
        self.control, self.folder, self.run_id = Control(), Path(store), _DISABLED
        self._closed = False

    def _ignore(self, *_: Any, **__: Any) -> Control:
        return self.control

    def _pass(self, *_: Any, **__: Any) -> None:
        pass

    step = log = evaluate = save = late = event = epoch_begin = epoch_end = agree = _ignore
    annotate = declare = load_state_dict = _pass

    def state_dict(self) -> dict[str, int | float | str | None]:
        """Return nothing: there is no run to resume."""
        return {}

    def close(self, **_: Any) -> None:
        """Count as closed."""
        self._closed = True

    @property
    def decides(self) -> bool:
        """False: there are no rules."""
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mode_of_environment() -> str:
    """Return ``disabled``, or nothing, as the environment variable ``STEPTAPE_MODE`` says.

    Raises:
        TelemetryError: It says something else.
    """
    mode = os.environ.get("STEPTAPE_MODE", "")
    if mode not in ("", _DISABLED):
        raise TelemetryError("STEPTAPE_MODE must be 'disabled' or not set", got=mode)
    return mode

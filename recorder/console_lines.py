"""Prints one line on stderr when a run begins and one when it ends: where it is, how to look at it, its last values."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from ..store.errors import counted

#: The environment variable that silences the lines, unless its value is one of ``_LOUD``.
QUIET_VARIABLE: Final = "STEPTAPE_QUIET"
_LOUD: Final = ("", "0", "false", "no", "off")

#: Maximum metrics in the last line.
_SHOWN: Final = 4


class ConsoleLines:
    """The lines of one run.

    Args:
        folder: The run's folder.
        name: The run's name.
        is_quiet: Print nothing. The environment variable has the same effect.

    Attributes:
        folder: The run's folder, as the lines name it.
    """

    def __init__(self, folder: Path, name: str, *, is_quiet: bool) -> None:
        self.folder, self._name = folder, name
        self._is_quiet = is_quiet or os.environ.get(QUIET_VARIABLE, "").lower() not in _LOUD

    def begin(self) -> None:
        """Print that the run is recorded."""
        self._say(f"recording {self._name!r}. {self._how_to_look()}")

    def end(self, status: str, steps: int, metrics: Mapping[str, float], lost_events: int, ignored: int) -> None:
        """Print how the run ended, with the first of its last values.

        Args:
            status: The status of the run, or what ended the attempt.
            steps: Updates finished.
            metrics: Its last values.
            lost_events: Events that could not be recorded.
            ignored: Updates after a rule asked for a stop.
        """
        values = ", ".join(f"{name} {value:.4g}" for name, value in islice(metrics.items(), _SHOWN))
        more = f" and {len(metrics) - _SHOWN} more" if len(metrics) > _SHOWN else ""
        late = f", {ignored} of them after a rule asked for a stop" if ignored > 0 else ""
        ended = f"{self._name!r} {status} after {counted(steps, 'step')}{late}"
        lost = f". {counted(lost_events, 'event')} could not be recorded" if lost_events else ""
        self._say(f"{ended}{': ' if values else ''}{values}{more}{lost}. {self._how_to_look()}")

    def _how_to_look(self) -> str:
        return f"To look at it: steptape show {shlex.quote(str(self.folder))}"

    def _say(self, line: str) -> None:
        if self._is_quiet or sys.stderr is None:
            return
        # A closed or full stderr must not end the training.
        try:
            sys.stderr.write(f"steptape: {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self._is_quiet = True

"""Keeps ``run.json`` of the run that a recorder writes: its description, its plan and how its newest attempt ended."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..store.run_info import Plan, RunInfo, write_run_info
from .process.termination import signals_held


class RunDocument:
    """``run.json`` of one run, which only the rank that decides writes.

    Args:
        folder: The run's folder.
        info: The run, with this attempt as the last.
        is_written: Whether this rank writes it.

    Attributes:
        folder: The run's folder; it changes when the folder is moved.
        info: What the file holds, or would hold.
    """

    def __init__(self, folder: Path, info: RunInfo, *, is_written: bool) -> None:
        self.folder, self.info = folder, info
        self._is_written = is_written

    def write(self) -> None:
        """Write the file.

        Raises:
            OSError: It cannot be written.
        """
        if self._is_written:
            with signals_held():
                write_run_info(self.folder, self.info)

    def declare(self, plan: Plan, config: Mapping[str, Any]) -> None:
        """Take a later plan and further hyper-parameters, and write the file."""
        self._change(declared=plan)
        self.info = dataclasses.replace(self.info, config={**self.info.config, **config})
        self.write()

    def end(
        self, status: str, steps: int, failure: dict[str, str] | None, reason: str | None, decision_digest: str | None
    ) -> None:
        """Take the end of the attempt, and write the file."""
        self._change(
            status=status,
            ended_ns=time.time_ns(),
            steps=steps,
            failure=failure,
            reason=reason,
            decision_digest=decision_digest,
        )
        self.write()

    def _change(self, **fields: Any) -> None:
        last = dataclasses.replace(self.info.last, **fields)
        self.info = dataclasses.replace(self.info, attempts=(*self.info.attempts[:-1], last))

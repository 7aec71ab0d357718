"""Defines the resume point that a checkpoint keeps, and the opening state of an attempt."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..store.errors import TelemetryError, require_version
from ..store.events import Event
from ..store.run_info import RunInfo
from .position import Position
from .values import as_epoch, as_text, as_whole

if TYPE_CHECKING:
    from ..rules.engine.engine import Engine

logger = logging.getLogger("steptape")

#: What ``Recorder(resume=...)`` takes.
Resume: TypeAlias = str | tuple[str, int] | Mapping[str, Any]

#: The format of ``Recorder.state_dict``; it grows when the meaning changes.
STATE_FORMAT: Final = 1

#: The operation whose receipts count however a run was resumed.
ROLL_BACK: Final = "rollback.to"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The place in a log from which an attempt resumes.

    Attributes:
        run_id: The run.
        attempt, seq: The attempt of the checkpoint, and the last event that the checkpoint covers; None if only a step
            is known.
        step: Number of updates that the checkpoint contains; None selects the newest recorded checkpoint.
        epoch, epoch_began_at, epochs_begun: The loop's position in its epochs, if it was kept.
    """

    run_id: str
    attempt: int | None = None
    seq: int | None = None
    step: int | None = None
    epoch: float | None = None
    epoch_began_at: int = 0
    epochs_begun: float | None = None

    @classmethod
    def from_argument(cls, resume: Resume) -> ResumePoint:
        """Read the user's ``resume`` argument: a run id, a run id with a step, or a ``Recorder.state_dict``.

        Raises:
            UnsupportedVersion: It is a state of another format.
            TelemetryError: It is none of them, or holds an invalid value.
        """
        if isinstance(resume, str):
            return cls(resume)
        if isinstance(resume, (tuple, list)) and len(resume) == 2 and isinstance(resume[0], str):
            return cls(resume[0], step=as_whole(resume[1], "the step to resume from"))
        fields = {field.name for field in dataclasses.fields(cls)}
        if isinstance(resume, Mapping) and "format" in resume:
            fix = "Resume with the steptape that made it, or with resume=(run_id, step)"
            require_version("recorder state format", resume["format"], STATE_FORMAT, where="resume", fix=fix)
        if not isinstance(resume, Mapping) or not {"format", *fields} <= set(resume):
            what = "resume must be a run id, (run_id, step) or the return value of Recorder.state_dict()"
            raise TelemetryError(what, got=resume)
        return cls(
            as_text(resume["run_id"]),
            as_whole(resume["attempt"], "the state's attempt"),
            None if resume["seq"] is None else as_whole(resume["seq"], "the state's seq", least=-1),
            as_whole(resume["step"], "the state's step"),
            None if resume["epoch"] is None else as_epoch(resume["epoch"]),
            as_whole(resume["epoch_began_at"], "the state's epoch_began_at"),
            as_epoch(resume["epochs_begun"], "the state's epochs_begun"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint."""
        return {"format": STATE_FORMAT, **dataclasses.asdict(self)}


def place_in(run_id: str, step: int, state: Any) -> Resume:
    """Return the ``resume`` with which a run continues from a checkpoint that the loop has loaded.

    Args:
        run_id: The run.
        step: The step of the checkpoint.
        state: The state that the checkpoint keeps; None without one. Anything else is warned of.
    """
    if state is None:
        return run_id, step
    try:
        if ResumePoint.from_argument(state).run_id == run_id:
            return state  # type: ignore[no-any-return]
        why = "it belongs to another run"
    except TelemetryError as error:
        why = error.what
    logger.warning("rollback to step %d: its function returned no state of this run: %s", step, why)
    return run_id, step


class Opening(NamedTuple):
    """The state with which an attempt begins.

    Attributes:
        folder: The run's folder.
        info: The run, with this attempt as the last.
        position: The position of the loop.
        engine: The rules, in the state in which earlier attempts left them; None without rules.
        read_on_all_ranks: The metrics that the rules read on all ranks.
        calls: The operations with arguments that the rules may order.
        kept: The receipts and checkpoints of the attempts that this one continues, in order. Then the receipts of all
            rollbacks of the run.
    """

    folder: Path
    info: RunInfo
    position: Position
    engine: Engine | None
    read_on_all_ranks: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    kept: tuple[Event, ...] = ()

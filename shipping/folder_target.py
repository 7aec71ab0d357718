"""A folder as the target of a push: a mounted disk, a stick, another store of this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..store.errors import NotWritten, RunChanging, TelemetryError
from .chunks import Stream
from .errors import BadFrames, ForeignRun, IntakeBusy, PushRefused, RunConflict, TargetAway
from .intake import Intake
from .run_state import RunPapers, RunState

#: The owner of runs that are pushed without a token, to a folder or to a server on this machine.
OWNER: Final = "local"


class FolderTarget:
    """The store in a folder, which is created if only its last part is missing.

    Raises:
        TelemetryError: The folder cannot be created, or pyarrow is missing.
    """

    def __init__(self, store: Path) -> None:
        if find_spec("pyarrow") is None:
            what = "a push to a folder needs pyarrow, which is not installed"
            raise TelemetryError(what, fix="Install steptape with its dependencies, or push to a server")
        try:
            store.mkdir(exist_ok=True)
        except OSError as error:
            raise TelemetryError(f"the target cannot be created ({error.strerror})", where=str(store)) from None
        self._why_unsealed = ""
        self._intake = Intake(store.absolute(), self._seal)

    def state(self, run_id: str) -> RunState:
        """As ``Target`` says."""
        with _translated():
            return self._intake.state(run_id, OWNER)

    def put_papers(self, run_id: str, papers: RunPapers) -> None:
        """As ``Target`` says."""
        with _translated():
            self._intake.take_papers(run_id, OWNER, papers)

    def put_chunk(self, run_id: str, chunk: bytes) -> int:
        """As ``Target`` says."""
        with _translated():
            return self._intake.take_chunk(run_id, OWNER, chunk)[1]

    def end(self, run_id: str, streams: Collection[Stream]) -> None:
        """As ``Target`` says; the run is sealed on return."""
        with _translated():
            self._intake.end(run_id, OWNER, streams)
        if self._why_unsealed:
            raise TargetAway("the run could not be sealed at the target", got=self._why_unsealed)

    def close(self) -> None:
        """As ``Target`` says."""
        self._intake.close()

    def _seal(self, folder: Path) -> None:
        from ..store.parquet.sealing import complaints

        self._why_unsealed = "; ".join(complaints(folder, other_hosts=True))


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the intake's errors into those of a target."""
    try:
        yield
    except (IntakeBusy, NotWritten, RunChanging) as error:
        raise TargetAway(error.what, where=error.where, fix=error.fix) from None
    except (BadFrames, RunConflict, ForeignRun) as error:
        raise PushRefused(error.what, where=error.where, got=error.got, fix=error.fix) from None
    except OSError as error:
        raise TargetAway(f"the target cannot be reached ({error})") from None

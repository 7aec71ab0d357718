"""Copies a run from a target into a store that lacks it: ``python -m steptape.shipping.run_fetch``.

So a job that is restarted on another machine continues its run. A recorder starts this process, with the store, the
run's id, the target, and the seconds to wait for it. It answers ``{"is_live": ..., "why": ...}``: whether the run still
has a writer there, and why the target could not be asked; empty if it was, whether or not it has the run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ..store.child_protocol import write_frame
from ..store.errors import TelemetryError
from ..store.own_process import claim_stdout, end_with_parent
from ..store.parquet.sealing import complaints, durable_file
from ..store.run_folder import sync_folder
from ..store.run_info import read_run_info
from .push_protocol import OutOfStep, RunState, Target, TargetAway
from .push_service import say
from .store_push import Backoff, environments_token, target_of
from .targets import ObjectTarget

#: Seconds between two looks at a run that still has a writer.
_LOOK_EVERY_S: Final = 0.5

#: Times that a copy begins anew because a sealer has replaced a file.
_MOST_TRIES: Final = 10


class StillLive(TelemetryError):
    """The run still has a writer at the target."""


def fetch_run(store: Path, run_id: str, target: Target | ObjectTarget, wait_s: float) -> None:
    """Copy a run from a target, if it has the run. The copy appears whole, sealed, or not at all.

    Args:
        store: The store that lacks the run; created if missing.
        run_id: The run.
        target: The target.
        wait_s: Seconds to wait while the target is away, and for a writer to end.

    Raises:
        StillLive: The run still has a writer.
        TelemetryError: The target is away or refuses this, or the copy cannot be written.
    """
    until_s, backoff, tries = time.monotonic() + wait_s, Backoff(say, wait_s), 0
    while True:
        began_s = time.monotonic()
        try:
            state = target.state(run_id)
            if not state.run_sha256:
                return
            if not state.is_live:
                _copy(store, run_id, target, state)
                return
        except OutOfStep:
            tries += 1
            if tries == _MOST_TRIES:
                raise
            continue
        except TargetAway as error:
            backoff.wait(error, began_s)
            continue
        if time.monotonic() >= until_s:
            raise StillLive("the run is still being written", where=run_id)
        time.sleep(_LOOK_EVERY_S)


def _copy(store: Path, run_id: str, target: Target | ObjectTarget, state: RunState) -> None:
    try:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=store, prefix=".fetch-") as aside:
            folder = Path(aside, run_id)
            folder.mkdir()
            for name in state.files:
                with durable_file(folder / name) as file:
                    for piece in target.pieces(run_id, name):
                        file.write(piece)
            if (found := read_run_info(folder).run_id) != run_id:
                raise TelemetryError("the target has sent another run", where=run_id, got=found)
            for why in complaints(folder, other_hosts=True):
                raise TelemetryError(f"the copy of the run cannot be sealed ({why})", where=run_id)
            sync_folder(folder)
            with suppress(FileExistsError):  # Another process was faster.
                folder.rename(store / run_id)
            sync_folder(store)
    except OSError as error:
        raise TelemetryError(f"the copy of the run cannot be written ({error.strerror})", where=str(store)) from None


def main() -> None:
    """Copy a run, and answer."""
    end_with_parent()
    answers = claim_stdout()
    store, run_id, address, wait_s = sys.argv[1:]
    why, is_live = "", False
    try:
        token = environments_token()
        with closing(target_of(address, token, wait_s=float(wait_s))) as target:
            fetch_run(Path(store), run_id, target, float(wait_s))
    except StillLive:
        is_live = True
    except TelemetryError as error:
        why = str(error)
    write_frame(answers, {"why": why, "is_live": is_live})


if __name__ == "__main__":
    main()

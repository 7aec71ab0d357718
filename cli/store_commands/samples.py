"""``steptape samples``: prints the samples behind a loss spike."""

from __future__ import annotations

from typing import Final

from ...store.errors import TelemetryError
from ...store.plural import counted
from ...store.run import Run
from ..arguments.looking import SamplesArguments
from ..lookup import run_named
from ..output import print_json, print_rows, say, shown

#: Columns of the printed table; those without any value are left out.
_COLUMNS: Final = ("step", "rank", "position", "sample_id", "loss", "excess", "share", "seen", "earlier_loss", "tokens")


def samples(asked: SamplesArguments) -> None:
    """Print the samples that drove a loss spike, the highest losses first."""
    opened = run_named(asked.run, asked.store)
    rows = opened.spiking_samples(asked.step, top=asked.top).to_pylist()
    if not rows:
        raise _nothing_there(opened, asked.step)
    if asked.as_json:
        for row in rows:
            print_json(row)
        return
    say(f"{counted(len(rows), 'sample')} at step {asked.step}; normal loss {shown(rows[0]['typical'])}")
    say()
    print_rows(rows, [name for name in _COLUMNS if any(row[name] is not None for row in rows)])


def _nothing_there(run: Run, step: int) -> TelemetryError:
    """Return the error that names the nearest steps with samples."""
    near = run.rows(f"SELECT DISTINCT step FROM samples ORDER BY abs(step - {step}), step LIMIT 3")
    if not near:
        fix = "Pass them to rec.step: samples=LOSSES, sample_ids=IDS"
        return TelemetryError("the run recorded no sample losses", where=run.run_id, fix=fix)
    steps = ", ".join(str(row["step"]) for row in near)
    fix = f"Nearest steps with samples: {steps}"
    return TelemetryError("no sample losses at this step", where=run.run_id, got=step, fix=fix)

"""``steptape verify``: proves that rules decided live what their replay decides."""

from __future__ import annotations

import typer

from ...replay.runs.verification import Verification
from ...replay.runs.verification import verify as verify_run
from ...store.errors import TelemetryError, counted
from ..lookup import complain_of, runs_chosen
from ..options import VerifyArguments
from ..output import print_json, say
from ..streams import CANNOT_OPEN, FINDINGS, complain_of_error


def verify(asked: VerifyArguments) -> None:
    """Prove that recorded and replayed decisions agree."""
    chosen, problems = runs_chosen(asked.runs, asked.store)
    complain_of(problems)
    status = CANNOT_OPEN if problems else 0
    if not chosen and not problems:
        say("No runs, so nothing to verify.")
    for run in chosen:
        try:
            verdict = verify_run(run)
        except TelemetryError as error:
            complain_of_error(error)
            status = CANNOT_OPEN
            continue
        _print(verdict, asked.as_json)
        if not verdict.identical:
            status = max(status, FINDINGS)
    raise typer.Exit(status)


def _print(verdict: Verification, as_json: bool) -> None:
    if as_json:
        print_json(verdict.to_json())
        return
    note = f" ({verdict.note})" if verdict.note else ""
    if verdict.fault:
        say(f"{verdict.run_id}: DAMAGED: {verdict.fault}{note}")
        return
    if verdict.unproven and verdict.difference is None:
        say(f"{verdict.run_id}: NOT PROVEN: {verdict.unproven}{note}")
        return
    if verdict.difference is None:
        said = counted(verdict.outcomes, "outcome")
        say(f"{verdict.run_id}: identical, {said}, digest {verdict.digest[:12]}{note}")
        return
    sides = verdict.difference.to_json()
    say(f"{verdict.run_id}: DIFFERS at {verdict.difference.place}{note}")
    say(f"  recorded: {sides['recorded'] or 'nothing more'}")
    say(f"  replayed: {sides['replayed'] or 'nothing more'}")

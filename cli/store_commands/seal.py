"""``steptape seal``: turns the journals of dead runs into Parquet."""

from __future__ import annotations

from typing import Annotated

import typer

from ...store.parquet.sealing import foreign_journals
from ...store.parquet.sealing import seal as seal_run
from ...store.plural import counted
from ..lookup import complain_of, runs_chosen
from ..options import JsonOption, StoreOption
from ..output import print_json, say
from ..streams import complain


def seal(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs to seal.")] = None,
    store: StoreOption = None,
    other_hosts: Annotated[
        bool,
        typer.Option("--other-hosts", help="Also other machines' journals; only safe if none still writes there."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert the journals of ended runs to Parquet.

    A journal is the file that a run appends its events to. Without RUN, seals every run of the store. Skips journals
    that a live process still writes and, without --other-hosts, those of other machines.
    """
    chosen, problems = runs_chosen(runs, store)
    complain_of(problems)
    if not chosen and not as_json:
        say(f"no runs in {store}")
    done = 0
    for run in chosen:
        events = seal_run(run.folder, other_hosts=other_hosts)
        foreign = foreign_journals(run.folder)
        if as_json:
            print_json({"run_id": run.run_id, "events_sealed": events})
        elif events or foreign:
            say(f"{run.run_id}: {counted(events, 'event')} sealed")
        elif run.status == "running":
            say(f"{run.run_id}: a process is writing to this run. It is sealed at its end")
        else:
            done += 1
        for path in foreign:
            complain(f"{path}: another machine wrote it and may still write; --other-hosts seals it nevertheless")
    if done:
        say(f"{counted(done, 'run')} {'is' if done == 1 else 'are'} sealed already")

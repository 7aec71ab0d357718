"""``steptape seal``: turns the journals of dead runs into Parquet."""

from __future__ import annotations

from ...store.errors import counted
from ...store.parquet.sealing import foreign_journals
from ...store.parquet.sealing import seal as seal_run
from ..lookup import complain_of, runs_chosen
from ..options import SealArguments
from ..output import print_json, say
from ..streams import complain


def seal(asked: SealArguments) -> None:
    """Convert the journals of ended runs to Parquet."""
    chosen, problems = runs_chosen(asked.runs, asked.store)
    complain_of(problems)
    if not chosen and not asked.as_json:
        say(f"no runs in {asked.store}")
    done = 0
    for run in chosen:
        events = seal_run(run.folder, other_hosts=asked.other_hosts)
        foreign = foreign_journals(run.folder)
        if asked.as_json:
            print_json({"run_id": run.run_id, "events_sealed": events})
        elif events or foreign:
            say(f"{run.run_id}: {counted(events, 'event')} sealed")
        elif run.snapshot().is_live:
            say(f"{run.run_id}: a process is writing to this run. It is sealed at its end")
        else:
            done += 1
        for path in foreign:
            complain(f"{path}: another machine wrote it and may still write; --other-hosts seals it nevertheless")
    if done:
        say(f"{counted(done, 'run')} {'is' if done == 1 else 'are'} sealed already")

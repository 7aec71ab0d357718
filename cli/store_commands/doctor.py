"""``steptape doctor``: reports damage and losses in a store or a run, and what to do about them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ...replay.run_pool import RunPool
from ...store.objects.access import object_of, refresh
from ...store.plural import counted
from ...store.reading.diagnosis import (
    UNREADABLE,
    StoreFault,
    diagnose,
    folders_to_look_at,
    is_run_folder,
    twins,
)
from ...store.reading.training import check_training
from ...store.run import Run
from ...store.store import open_store
from ..exit_status import FINDINGS
from ..options import JsonOption, store_path
from ..output import print_json, progress, say
from ..streams import complain


class _Examined(NamedTuple):
    """What is found in a folder.

    Attributes:
        run_id: The run's id; None if it cannot be read.
        faults: The faults.
        unjudged: What cannot be checked, one sentence each.
    """

    run_id: str | None
    faults: list[StoreFault]
    unjudged: list[str]


def _examined(folder: Path, *, training: bool) -> _Examined:
    run_id, faults = diagnose(folder)
    unjudged: list[str] = []
    if training and not any(fault.code in UNREADABLE for fault in faults):
        inconsistent, unjudged = Run(folder).read(check_training)
        faults += inconsistent
    return _Examined(run_id, faults, unjudged)


def _in_bucket(fault: StoreFault) -> StoreFault:
    """Return a fault of a mirrored run as one of its objects: the user knows no path of the cache."""
    where = object_of(Path(fault.where))
    if where is None:
        return fault
    fix = "Mend the run where it was pushed from, and push it again"
    return StoreFault(fault.code, where, fault.what.replace(fault.where, where), fix)


def doctor(
    source: Annotated[
        Path,
        typer.Argument(
            parser=store_path, metavar="STORE|RUN", envvar="STEPTAPE_STORE", help="Folder of runs, or one run's folder."
        ),
    ] = Path("runs"),
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="Check the training, too: updates, micro-batches, plan and ranks, and what a resume did to its data.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find damage in a store or a run, and print what to do about it.

    Reads every file and changes nothing. Exit status 1 when it finds damage. With --json, prints one finding per line.
    """
    found: list[StoreFault] = []
    if is_run_folder(source):
        folders = [source]
    else:
        store = open_store(source).path
        folders = folders_to_look_at(store)
        found += [StoreFault("no-run", str(run), error.what, error.fix) for run, error in refresh(store)]
    examined: list[_Examined] = []
    with progress() as bar, RunPool(None) as pool:
        task = bar.add_task("reading runs", total=len(folders))
        for one in pool.mapped(partial(_examined, training=training), folders):
            examined.append(one)
            bar.advance(task)
    found += [fault for one in examined for fault in one.faults]
    found += twins(dict(zip(folders, (one.run_id for one in examined), strict=True)))
    found = [_in_bucket(fault) for fault in found]
    unknown = [line for one in examined for line in one.unjudged]
    for finding in found:
        if as_json:
            print_json(finding.to_json())
        else:
            say(f"{finding} [{finding.code}]")
    for line in unknown:
        complain(line)
    if not as_json:
        say(f"{counted(len(folders), 'run')}: {counted(len(found), 'finding') if found else 'nothing is wrong'}")
    if found:
        raise typer.Exit(FINDINGS)

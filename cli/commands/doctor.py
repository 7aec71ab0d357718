"""``steptape doctor``: reports damage and losses in a store or a run, and what to do about them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer

from ...replay.run_pool import RunPool
from ...store.errors import counted
from ...store.objects.mirror_access import object_of, refresh
from ...store.reading.diagnosis import UNREADABLE, StoreFault, diagnose, folders_to_look_at, is_run_folder, twins
from ...store.reading.training import check_training
from ...store.run import Run
from ...store.store import local_folder
from ..lookup import open_store_named, run_named, store_named
from ..options import DoctorArguments
from ..output import print_json, progress, say
from ..streams import FINDINGS, complain


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


def _folder_of(key: str, store: str | None) -> Path:
    """Return the folder of a run, which may be damaged."""
    folder = local_folder(key) if "/" in key else store_named(store) / key
    return folder if is_run_folder(folder) else run_named(key, store).folder


def doctor(asked: DoctorArguments) -> None:
    """Find damage in a store or a run, and print what to do about it."""
    found: list[StoreFault] = []
    if asked.run is not None:
        folders = [_folder_of(asked.run, asked.store)]
    else:
        store = open_store_named(asked.store).path
        folders = folders_to_look_at(store)
        found += [StoreFault("no-run", str(run), error.fact, error.fix) for run, error in refresh(store)]
    examined: list[_Examined] = []
    with progress("reading runs", len(folders)) as show, RunPool(None) as pool:
        for one in pool.mapped(partial(_examined, training=asked.training), folders):
            examined.append(one)
            show(len(examined))
    found += [fault for one in examined for fault in one.faults]
    found += twins(dict(zip(folders, (one.run_id for one in examined), strict=True)))
    found = [_in_bucket(fault) for fault in found]
    unknown = [line for one in examined for line in one.unjudged]
    for finding in found:
        if asked.as_json:
            print_json(finding.to_json())
        else:
            say(f"{finding} [{finding.code}]")
    for line in unknown:
        complain(line)
    if not asked.as_json:
        say(f"{counted(len(folders), 'run')}: {counted(len(found), 'finding') if found else 'nothing is wrong'}")
    if found:
        raise typer.Exit(FINDINGS)

"""``steptape doctor``: reports damage and losses in a store or a run, and what to do about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...store.plural import counted
from ...store.reading.diagnosis import UNREADABLE, StoreFault, diagnose, folders_to_look_at, is_run_folder, twins
from ...store.reading.training import check_training
from ...store.run import Run
from ...store.store import open_store
from ..exit_status import FINDINGS
from ..options import JsonOption
from ..output import print_json, progress, say
from ..streams import complain


def doctor(
    source: Annotated[
        Path,
        typer.Argument(metavar="STORE|RUN", envvar="STEPTAPE_STORE", help="Folder of runs, or one run's folder."),
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
    unknown: list[str] = []
    folders = [source] if is_run_folder(source) else folders_to_look_at(open_store(source).path)
    found: list[StoreFault] = []
    with progress() as bar:
        task = bar.add_task("reading runs", total=len(folders))
        for folder in folders:
            faults = diagnose(folder)
            if training and not any(fault.code in UNREADABLE for fault in faults):
                inconsistent, unjudged = Run(folder).read(check_training)
                faults += inconsistent
                unknown += unjudged
            found += faults
            bar.advance(task)
    found += twins(folders)
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

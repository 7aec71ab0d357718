"""``steptape doctor``: reports damage and losses in a store or a run, and what to do about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...store.plural import counted
from ...store.reading.diagnosis import StoreFault, diagnose, folders_to_look_at, is_run_folder, twins
from ...store.store import open_store
from ..exit_status import FINDINGS
from ..options import JsonOption
from ..output import print_json, progress, say


def doctor(
    source: Annotated[
        Path,
        typer.Argument(metavar="STORE|RUN", envvar="STEPTAPE_STORE", help="Folder of runs, or one run's folder."),
    ] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Find damage in a store or a run, and print what to do about it.

    Reads every file and changes nothing. Exit status 1 when it finds damage. With --json, prints one finding per line.
    """
    folders = [source] if is_run_folder(source) else folders_to_look_at(open_store(source).path)
    found: list[StoreFault] = []
    with progress() as bar:
        task = bar.add_task("reading runs", total=len(folders))
        for folder in folders:
            found += diagnose(folder)
            bar.advance(task)
    found += twins(folders)
    for finding in found:
        if as_json:
            print_json(finding.to_json())
        else:
            say(f"{finding} [{finding.code}]")
    if not as_json:
        say(f"{counted(len(folders), 'run')}: {counted(len(found), 'finding') if found else 'nothing is wrong'}")
    if found:
        raise typer.Exit(FINDINGS)

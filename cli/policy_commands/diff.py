"""``steptape diff``: backtests two rule files on the same recorded runs and reports what differs.

Reports the differences in orders, ends, steps, time, checkpoints and regret.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ...replay.backtests.policy_diff import diff_policies
from ...replay.reports.diff_report import diff_json, diff_lines
from ...replay.runs.saves import Saves
from ..exit_status import FINDINGS
from ..lookup import complain_of, runs_chosen
from ..options import JsonOption, StoreOption
from ..output import print_json, reading_runs, say
from ..policy_lookup import policy_named
from ..policy_options import (
    FamilyOption,
    ModeOption,
    ObjectiveOption,
    ProcessesOption,
    RenameOption,
    SavesOption,
    objectives_of,
    renames_of,
)

_POLICY = "A policy file, or the name of a shipped policy."


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help=_POLICY)],
    new: Annotated[str, typer.Argument(metavar="NEW", help=_POLICY)],
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs to compare them on.")] = None,
    store: StoreOption = None,
    objective: ObjectiveOption = None,
    mode: ModeOption = None,
    renames: RenameOption = None,
    saves: SavesOption = Saves.KEEP,
    old_settings: Annotated[
        list[str] | None, typer.Option("--set-old", metavar="PARAM=VALUE", help="Set a param of OLD; repeatable.")
    ] = None,
    new_settings: Annotated[
        list[str] | None, typer.Option("--set-new", metavar="PARAM=VALUE", help="Set a param of NEW; repeatable.")
    ] = None,
    family: FamilyOption = None,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the behaviour of two policies on recorded runs.

    Prints the changes per run and in total, as Markdown for a pull request. Behaviour is which operations are ordered,
    and when: renaming or rewriting a controller is no change. Exit status 1 when the behaviour changes in any run.
    """
    declared, renaming = objectives_of(objective, mode), renames_of(renames)
    policies = policy_named(old, old_settings), policy_named(new, new_settings)
    chosen, problems = runs_chosen(runs, store)
    complain_of(problems)
    with reading_runs() as on_progress:
        found = diff_policies(
            *policies,
            chosen,
            objective=declared,
            renames=renaming,
            saves=saves,
            on_progress=on_progress,
            processes=processes,
            family=family,
        )
    if as_json:
        print_json(diff_json(found))
    else:
        for line in diff_lines(found):
            say(line)
    raise typer.Exit(FINDINGS if found.changed else 0)

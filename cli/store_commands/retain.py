"""``steptape retain``: says which checkpoints and runs a keep file lets go, and deletes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ...retention.deleting import carry_out, check_deletable
from ...retention.keep_file import read_keep_file
from ...retention.plan import RetentionPlan, RunVerdict, plan_retention
from ...retention.receipt import Interrupted, Receipt, interrupted_in
from ...store.plural import counted
from ...store.store import open_store
from ..exit_status import FINDINGS
from ..lookup import complain_of
from ..options import JsonOption, store_path
from ..output import print_json, print_table, say
from ..streams import complain

_GB: Final = 1e9


def retain(
    store: Annotated[Path, typer.Argument(parser=store_path, metavar="STORE", help="Folder of runs.")],
    keep_file: Annotated[Path, typer.Argument(metavar="KEEP_FILE", help="YAML file that says what stays.")],
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Relative paths are relative to it, and checkpoints in it may go; by default only those in STORE.",
        ),
    ] = None,
    cost: Annotated[
        float | None, typer.Option("--cost-per-gb-month", metavar="N", min=0, help="Price of a GB for a month.")
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where each deletion is recorded, before and after.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Delete what goes. Needs --receipt.")] = False,
    digest: Annotated[
        str | None, typer.Option("--plan", metavar="DIGEST", help="With --apply: the plan that a dry run printed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which checkpoints and runs a keep file lets go, and delete them with --apply.

    Without --apply, changes nothing. A running run, and the only point to resume a run from, always stay. Exit status 1
    if something could not be deleted.
    """
    if apply and receipt is None:
        raise typer.BadParameter("--apply needs --receipt FILE")
    interrupted = [] if receipt is None else interrupted_in(receipt)
    plan = plan_retention(open_store(store), read_keep_file(keep_file), root=root, interrupted=interrupted)
    complain_of(plan.problems)
    for one in interrupted:
        complain(f"{receipt}: the deletion of {one.path} was interrupted: it is {one.state}")
    if not apply or not as_json:
        _print(plan, cost, interrupted, as_json)
    if apply and receipt is not None:
        check_deletable(plan, digest or _confirmed(plan))
        _apply(plan, receipt, as_json)


def _confirmed(plan: RetentionPlan) -> str:
    """Return the plan's digest once the user has agreed to it on a terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"--apply needs --plan DIGEST: look at a dry run first; the plan is now {plan.digest}")
    typer.confirm(f"Delete {counted(len(plan.doomed), 'thing')}, {_size(plan.size_bytes)}?", abort=True)
    return plan.digest


def _apply(plan: RetentionPlan, path: Path, as_json: bool) -> None:
    failed = 0
    with Receipt(path) as receipt:
        for outcome in carry_out(plan, receipt):
            failed += bool(outcome.why_not)
            if as_json:
                print_json(outcome.doomed.to_json() | {"deleted": not outcome.why_not, "why_not": outcome.why_not})
            elif outcome.why_not:
                say(f"not deleted {outcome.doomed.path}: {outcome.why_not}")
            else:
                say(f"deleted {outcome.doomed.path}")
    if failed:
        raise typer.Exit(FINDINGS)


def _print(plan: RetentionPlan, cost: float | None, interrupted: Sequence[Interrupted], as_json: bool) -> None:
    if as_json:
        print_json(_document(plan, cost, interrupted))
        return
    rows = [_row(run, cost) for run in plan.runs]
    headings = ["run", "log", "kept", "to go", "untouched", "missing", "GB to go", "regret lost", "a month"]
    shown = headings if cost is not None else headings[:-1]
    print_table(shown, rows, numeric=headings[2:])
    say()
    checkpoints = [(run.name, one.step, one.path, one.kept or "to go") for run in plan.runs for one in run.checkpoints]
    if checkpoints:
        print_table(("run", "step", "checkpoint", "why it stays"), checkpoints, numeric=("step",))
        say()
    for run in plan.runs:
        if not run.kept:
            say(f"the log of {run.run_id} goes")
    money = "" if cost is None else f", {plan.size_bytes / _GB * cost:.2f} a month"
    say(f"to go: {counted(len(plan.doomed), 'thing')}, {_size(plan.size_bytes)}{money}. Plan {plan.digest}")


def _row(run: RunVerdict, cost: float | None) -> list[object]:
    sizes = [one.size_bytes for one in run.checkpoints if one.size_bytes is not None and not one.kept]
    untouched = sum(one.size_bytes is None for one in run.checkpoints)
    kept = len(run.checkpoints) - len(sizes) - untouched
    gb = sum(sizes) / _GB
    lost = "all" if run.best is not None and run.best_kept is None else run.regret
    row: list[object] = [run.name, "stays" if run.kept else "goes", kept, len(sizes), untouched, run.missing, gb, lost]
    return row if cost is None else [*row, round(gb * cost, 2)]


def _document(plan: RetentionPlan, cost: float | None, interrupted: Sequence[Interrupted]) -> dict[str, Any]:
    return {
        "plan": plan.digest,
        "size_bytes": plan.size_bytes,
        "cost_per_month": None if cost is None else plan.size_bytes / _GB * cost,
        "to_go": [doomed.to_json() for doomed in plan.doomed],
        "runs": [asdict(run) for run in plan.runs],
        "interrupted": [{"path": str(one.path), "state": one.state} for one in interrupted],
        "unreadable": [str(problem) for problem in plan.problems],
    }


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GB:,.3f} GB"

"""``steptape health``: prints what is wrong with a run."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from ...replay.health.health import HealthSummary, health_of
from ...replay.health.health_state import HealthState
from ..exit_status import FINDINGS, NO_ANSWER
from ..lookup import run_named
from ..options import JsonOption, RunArgument, StoreOption
from ..output import print_json, print_table, say
from ..policy_lookup import policy_named
from ..policy_options import RenameOption, SetOption, renames_of


def health(
    run: RunArgument,
    store: StoreOption = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="POLICY", help="A policy file, or the name of a shipped policy.")
    ] = "nano_train",
    settings: SetOption = None,
    renames: RenameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what is wrong with a run, one line for each group of metrics.

    Replays a policy over the run. A rule fires now if it has fired, and was true at each evaluation since: an ended run
    keeps the state of its end. A group whose metrics the run lacks is not evaluable, and the line names them. Any
    metric whose newest value is NaN or infinite is critical, whatever its name. Causes and actions follow, from the
    policy's controllers whose names begin with diagnosis_.
    Exit status 1 when a group is critical or has a warning, 3 when no group of the policy could be evaluated.
    """
    found = health_of(run_named(run, store), policy_named(policy, settings), tuple(renames_of(renames).items()))
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    unknown = NO_ANSWER if found.state is HealthState.NOT_EVALUABLE else 0
    raise typer.Exit(FINDINGS if found.state.is_wrong else unknown)


def _print(found: HealthSummary) -> None:
    print_table(("group", "state", "what"), [(group.name, group.state, group.sentence) for group in found.groups])
    for rule in found.diagnoses:
        if rule.state.is_wrong:
            say()
            say(f"{rule.state}: {rule.sentence}")
    say()
    say(f"{found.name}: {found.sentence}")
    if found.nearest:
        options = {old: f"--rename {shlex.quote(f'{old}={name}')}" for name, old in found.nearest.items()}
        say(f"nearest: {', '.join(options)}. To judge by these: {' '.join(options.values())}")

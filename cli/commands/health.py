"""``steptape health``: prints what is wrong with a run."""

from __future__ import annotations

import shlex

import typer

from ...replay.health.health import health_of
from ...replay.health.health_summary import DEFAULT_POLICY, HealthState, HealthSummary, health_json
from ...store.reading.summary import keep_health
from ..lookup import run_named
from ..options import HealthArguments
from ..output import print_json, print_table, say
from ..policy_lookup import policy_named
from ..policy_options import renames_over
from ..streams import FINDINGS, NO_ANSWER


def health(asked: HealthArguments) -> None:
    """Print what is wrong with a run, one line for each group of metrics."""
    run, policy = run_named(asked.run, asked.store), policy_named(asked.policy, asked.settings)
    renames = tuple(renames_over(asked.renames, [policy], [run]).items())
    found = health_of(run, policy, renames, plans_by_length=asked.plan is not None, is_cached=True)
    if asked.policy == DEFAULT_POLICY and not (asked.settings or renames or asked.plan):
        keep_health(run.folder, run.snapshot().info, found.state)
    if asked.as_json:
        print_json(health_json(found))
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

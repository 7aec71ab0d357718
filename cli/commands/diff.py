"""``steptape diff``: backtests two rule files on the same recorded runs and reports what differs.

Reports the differences in orders, ends, steps, time, checkpoints and regret.
"""

from __future__ import annotations

import typer

from ...replay.reports.diff import diff_json, diff_lines, diff_policies
from ..lookup import complain_of, runs_chosen
from ..options import DiffArguments
from ..output import print_json, reading_runs, say
from ..policy_lookup import policy_named
from ..policy_options import judging_of, renames_over
from ..streams import FINDINGS


def diff(asked: DiffArguments) -> None:
    """Compare the behaviour of two rule files on recorded runs."""
    judging = judging_of(asked.judging)
    policies = policy_named(asked.old, asked.old_settings), policy_named(asked.new, asked.new_settings)
    chosen, problems = runs_chosen(asked.runs, asked.store)
    complain_of(problems)
    judging["renames"] = renames_over(asked.judging.renames, policies, chosen)
    with reading_runs() as on_progress:
        found = diff_policies(
            *policies,
            chosen,
            on_progress=on_progress,
            **judging,
        )
    if asked.as_json:
        print_json(diff_json(found))
    else:
        for line in diff_lines(found):
            say(line)
    raise typer.Exit(FINDINGS if found.changed else 0)

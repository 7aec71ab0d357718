"""The arguments of ``check``, ``test`` and ``replay``."""

from typing import Annotated, NamedTuple

import typer

from ...rules.checks.finding_codes import FindingCode
from ..options import JsonOption, PolicyArgument, SetOption, StoreOption, one_of


class CheckArguments(NamedTuple):
    """List every error and warning in policy files.

    Prints each error and warning as path:line:column: message, with the line and a caret below. With --against RUN, or
    --store STORE for all of its runs, also checks the rules against these runs: metrics that were never recorded,
    and windows and patience that are longer than the runs. Says how many of the runs lack a metric that others have,
    and in how many the policy could not fire, whatever their values.
    Exit status 1 when there is an error or a warning, 2 when a policy file or a run cannot be opened.
    """

    policies: Annotated[
        list[str], typer.Argument(metavar="POLICY...", help="Policy files, or shipped policies' names.")
    ]
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="RUN", help="Also check against this run; more run folders may follow."),
    ] = None
    store: StoreOption = None
    settings: SetOption = None
    ignored: Annotated[
        list[FindingCode] | None,
        typer.Option("--ignore", parser=one_of(*FindingCode), metavar="WARNING", help="Leave out one kind of warning."),
    ] = None
    as_json: JsonOption = False


class TestArguments(NamedTuple):
    """Run the unit tests of policies.

    A test file names a policy, series of values in a short notation, and the expected decisions. "Check and test rules"
    in the documents describes it. Exit status 1 when a test fails, 2 when a file or its policy does not load.
    """

    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Test files, or names of shipped policies.")]
    as_json: JsonOption = False


class ReplayArguments(NamedTuple):
    """Print what a policy decides over one recorded run.

    With --json, prints one decision, rule error or rule warning per line. Its event_index counts the events of rank 0
    from 0. It skips events that a resume rolled back, and the recorded decisions, errors and warnings of live rules.

    With --lr, prints for each update of the record the rate of the schedule, the scheduled rate with the policy's
    reductions, and the used one. The losses are those of the record, so all after the first change is censored.

    With --experts, prints what LLEP would have made of the recorded tokens of experts, by the policy's metric of class
    LlepPlan: for each layer, or for each combination of params if --set gives several values, as in threshold=1,1.3,2.
    over and active are shares of the dispatches: with a load ratio of at least the threshold, and with a plan in use.
    ratio, chunks, experts and sticky are mean load ratios: in place, after a plan in chunks, after that plan with whole
    experts, and under the plan in use. worst is the greatest in place; excess the layer's share of all tokens above the
    mean load. planned and moved are tokens sent elsewhere by a plan for each dispatch, and by the plan in use.
    """

    policy: PolicyArgument
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A RUN, or a .jsonl file of events ('-' reads standard input)."),
    ]
    store: StoreOption = None
    settings: SetOption = None
    has_rates: Annotated[
        bool, typer.Option("--lr", help="Print the learning rates that the policy would have set instead.")
    ] = False
    has_experts: Annotated[
        bool, typer.Option("--experts", help="Print what LLEP would have made of the experts' tokens instead.")
    ] = False
    as_json: JsonOption = False

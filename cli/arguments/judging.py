"""The arguments of ``backtest``, ``sweep``, ``certify``, ``diff``, ``compare`` and ``verify``."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..options import (
    FamilyOption,
    HtmlOption,
    JsonOption,
    ObjectiveOption,
    PolicyArgument,
    ProcessesOption,
    RayOption,
    RenameOption,
    RunsArgument,
    SavesOption,
    SetOption,
    StoreOption,
    ValuesOption,
)

_GROUP = "a name, a pattern such as 'lr3*', a group, or KEY=VALUE of name, group, tag or the configuration"


class BacktestArguments(NamedTuple):
    """Report what a policy would have saved and cost on recorded runs.

    Replays the policy over the named runs, over all runs of the store, or over the logs at --history. The cost is
    regret: how much worse the best evaluation before a stop is than the best of the whole run.
    """

    policy: Annotated[
        str,
        typer.Argument(metavar="POLICY", help="A policy file, the name of a shipped policy, or baseline:NAME."),
    ]
    runs: RunsArgument = None
    store: StoreOption = None
    history: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", readable=False, help="Replay it over other tools' logs, imported into a cache; repeatable."
        ),
    ] = None
    renames: RenameOption = None
    objective: ObjectiveOption = None
    settings: SetOption = None
    baselines: Annotated[
        list[str] | None,
        typer.Option("--baseline", metavar="NAME", help="Also compare with this baseline; 'all' for every one."),
    ] = None
    coverage: Annotated[bool, typer.Option("--coverage", help="Report which parts of each rule were ever true.")] = (
        False
    )
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of labelled incidents: run, first_step, last_step, name.")
    ] = None
    tolerance: Annotated[
        int, typer.Option(metavar="STEPS", min=0, help="How far outside an incident an alarm still counts.")
    ] = 0
    delay: Annotated[
        int, typer.Option(metavar="STEPS", min=0, help="Optimizer updates between the decision to stop and the stop.")
    ] = 0
    saves: SavesOption = "keep"
    cost_per_hour: Annotated[
        float | None, typer.Option(metavar="AMOUNT", min=0, help="Cost of one hour of one rank.")
    ] = None
    html: HtmlOption = None
    front: Annotated[
        Path | None,
        typer.Option(metavar="SWEEP.json", help="The lines of 'sweep --json' that the policy was chosen from."),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A certificate of this policy: print which runs are outside of it, and why."),
    ] = None
    family: FamilyOption = None
    processes: ProcessesOption = None
    ray: RayOption = None
    as_json: JsonOption = False


class SweepArguments(NamedTuple):
    """Backtest every combination of a policy's params.

    A variant is one combination. Prints the best trade-offs, most steps saved first: the variants for which no other
    saves more steps at no more mean regret. Regret is how much worse the best evaluation before a stop is than the
    run's best. The runs that chose these variants flatter them: --split states by how much. With --json, prints every
    variant, one per line; stderr then lists what the slower event engine evaluated, and the excluded runs.
    """

    policy: PolicyArgument
    runs: RunsArgument = None
    settings: ValuesOption = None
    store: StoreOption = None
    objective: ObjectiveOption = None
    renames: RenameOption = None
    saves: SavesOption = "keep"
    family: FamilyOption = None
    processes: ProcessesOption = None
    ray: RayOption = None
    split: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[=N]",
            help="Also judge the best trade-offs on runs that did not choose them: in N folds of 'families' (each "
            "family, up to 20), or N parts in time by 'walk-forward' (5).",
        ),
    ] = None
    html: HtmlOption = None
    as_json: JsonOption = False


class CertifyArguments(NamedTuple):
    """Choose the variant of a policy that saves most while it keeps a stated risk.

    Every combination of the values is a variant. One run of each family is drawn, and each variant is tested on them:
    the chosen one keeps the limit on runs like these with the stated confidence, however many variants were tried.
    Exits with 1 if no variant can be certified, and with --check if something has changed.
    """

    policy: Annotated[
        str | None,
        typer.Argument(
            metavar="POLICY",
            help="A policy file, or the name of a shipped policy. With --check, the certificate's own if left out.",
        ),
    ] = None
    runs: RunsArgument = None
    settings: ValuesOption = None
    risk: Annotated[
        str,
        typer.Option(
            metavar="RISK", help="What a run may not lose: 'regret > 1%', 'deployable_regret > 2%', or 'mean regret'."
        ),
    ] = "regret > 1%"
    at_most: Annotated[
        str, typer.Option(metavar="LIMIT", help="Share of runs in which it may; for 'mean regret', the mean itself.")
    ] = "10%"
    confidence: Annotated[
        str, typer.Option(metavar="SHARE", help="Probability that the limit is kept, over the choice of the runs.")
    ] = "90%"
    cap: Annotated[
        str | None,
        typer.Option(metavar="REGRET", help="For 'mean regret': the most regret that one run counts with."),
    ] = None
    order: Annotated[
        str | None,
        typer.Option(
            metavar="PARAM:asc|desc", help="Test the values of a param from the least (asc) or the greatest (desc) on."
        ),
    ] = None
    store: StoreOption = None
    objective: ObjectiveOption = None
    renames: RenameOption = None
    saves: SavesOption = "keep"
    family: FamilyOption = None
    processes: ProcessesOption = None
    ray: RayOption = None
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the certificate to this file.")
    ] = None
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Check a certificate: is its policy unchanged, and with RUN or --store, are its logs?",
        ),
    ] = None
    as_json: JsonOption = False


class DiffArguments(NamedTuple):
    """Compare the behaviour of two policies on recorded runs.

    Prints the changes per run and in total, as Markdown for a pull request. Behaviour is which operations are ordered,
    and when: renaming or rewriting a controller is no change. Exit status 1 when the behaviour changes in any run.
    """

    old: Annotated[str, typer.Argument(metavar="OLD", help="A policy file, or the name of a shipped policy.")]
    new: Annotated[str, typer.Argument(metavar="NEW", help="The policy to compare with it.")]
    runs: RunsArgument = None
    store: StoreOption = None
    objective: ObjectiveOption = None
    renames: RenameOption = None
    old_settings: Annotated[
        list[str] | None, typer.Option("--set-old", metavar="PARAM=VALUE", help="Set a param of OLD; repeatable.")
    ] = None
    new_settings: Annotated[
        list[str] | None, typer.Option("--set-new", metavar="PARAM=VALUE", help="Set a param of NEW; repeatable.")
    ] = None
    family: FamilyOption = None
    processes: ProcessesOption = None
    as_json: JsonOption = False


class CompareArguments(NamedTuple):
    """Say whether runs B are better than runs A: keep, discard or not yet.

    The runs of a group are repeats of one configuration, such as with other seeds. You may look after each run and stop
    when you like. Exit status 0 for keep, 1 for discard, 3 for not yet.
    """

    baseline: Annotated[str, typer.Argument(metavar="A", help=f"The runs to beat: {_GROUP}.")]
    candidate: Annotated[str, typer.Argument(metavar="B", help="The runs that may be better, named alike.")]
    store: StoreOption = None
    objective: ObjectiveOption = None
    renames: RenameOption = None
    at: Annotated[
        str,
        typer.Option(
            metavar="step|tokens|time[=VALUE]",
            help="Where runs are compared: by default at the last step that every finished run evaluated.",
        ),
    ] = "step"
    alpha: Annotated[
        float, typer.Option(metavar="P", help="Largest probability of keeping a candidate that is no better.")
    ] = 0.05
    min_effect: Annotated[
        str, typer.Option(metavar="D|P%", help="By how much B must be better: in the metric's units, or in percent.")
    ] = "0"
    at_most_tries: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of candidates that you will ever try against A.")
    ] = None
    at_most_runs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of B after which it is discarded unless it is kept.")
    ] = None
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="KEY|none",
            help="Pair the runs with equal values of this configuration key. By default runs of one seed are pairs if "
            "one group has all seeds of the other.",
        ),
    ] = None
    as_json: JsonOption = False


class VerifyArguments(NamedTuple):
    """Prove that recorded and replayed decisions agree.

    Replays the policy that each run was recorded with, and checks the digests that were taken at its end. An outcome is
    a decision, a rule error or a rule warning.
    Exit status 1 when they differ, 2 when a run cannot be opened.
    """

    runs: RunsArgument = None
    store: StoreOption = None
    as_json: JsonOption = False

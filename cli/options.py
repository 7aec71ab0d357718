"""Declares the arguments of each command, first the options that several commands share.

Loads the names of findings from ``rules``, and nothing else of other rooms. There is no ``from __future__ import
annotations``: typer reads the annotations of a ``NamedTuple`` as they are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import typer

from ..rules.checks.finding_codes import FindingCode


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of these words. Typer's own says 'Value error' in its message."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, map(str, words)))}.")
        return text

    return parse


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        show_default=False,
        help="Folder of runs, or s3://BUCKET/PREFIX; by default STEPTAPE_STORE, else 'runs'.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id, name or NAME@N in the store, or its path with a '/'.")
]
OneRunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run: its id, name or NAME@N, or a path; by default all of the store."),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN...", help="Runs: each its id, name or NAME@N, or a path; by default all of the store."),
]
PolicyArgument = Annotated[
    str,
    typer.Argument(metavar="RULES", help="A rule file, the name of a shipped one, or sentences: 'stop if loss > 3'."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PARAM=VALUE", help="Set a param of the rule file; repeatable.")
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PARAM=VALUES", help="Values to try: a list 1,2,3 or a range FIRST..LAST..STEP."),
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="METRIC[:min|max]",
        help="The evaluation metric that judges runs; repeat it for a second choice. Guessed run by run if left out.",
    ),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="Rename a metric as rules call it, such as val_loss=eval_loss; repeatable.",
    ),
]
#: The same where a policy says which metrics are lacking.
RuleRenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW|auto",
        help="Rename a metric as rules call it, such as val_loss=eval_loss; 'auto' takes each nearest name that is "
        "the only one. Repeatable.",
    ),
]
PlanOption = Annotated[
    Literal["last"] | None,
    typer.Option(
        "--plan",
        parser=one_of("last"),
        metavar="last",
        help="Take the last step of a completed run for its planned length, where it has no plan.",
    ),
]
SavesOption = Annotated[
    Literal["keep", "replace"],
    typer.Option(
        "--saves",
        parser=one_of("keep", "replace"),
        metavar="keep|replace",
        help="Whether checkpoints that rules order are added to the loop's own, or replace them.",
    ),
]
FamilyOption = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="KEY",
        help="The key that runs of one family share: group, tags, name, folder, run, or a configuration key.",
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Number of processes that read runs; by default as many as are worth their start, up to one per core.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[HOST:PORT]",
        help="Compute on this Ray cluster, or on the one that is found; without any, Ray is started here.",
    ),
]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write an HTML page with plots.")]
LogLevelOption = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(
        "--log-level",
        parser=one_of("debug", "info", "warning", "error"),
        metavar="debug|info|warning|error",
        help="Least serious records of the log on stderr; outcomes are 'info'.",
    ),
]
LogFormatOption = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        "--log-format",
        parser=one_of("text", "json"),
        metavar="text|json",
        help="Write the log as lines of text, or of JSON objects.",
    ),
]

WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="QUESTION",
        help="Only runs that match it, such as 'started:30d status:completed lr<0.01'; 'Query runs' describes it.",
    ),
]

_GROUP = "a name, a pattern such as 'lr3*', a group, or FIELD=VALUE with a field of 'runs --where', such as lr=0.1"


class RunsOptions(NamedTuple):
    """The arguments that choose the runs on which rule files are judged."""

    runs: RunsArgument = None
    store: StoreOption = None
    history: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", readable=False, help="Take other tools' logs instead, imported into a cache; repeatable."
        ),
    ] = None
    where: WhereOption = None


class JudgingOptions(NamedTuple):
    """The options of commands that judge runs: by what, how runs belong together, and what reads them."""

    objective: ObjectiveOption = None
    renames: RuleRenameOption = None
    plan: PlanOption = None
    family: FamilyOption = None
    processes: ProcessesOption = None


class ReplayingOptions(NamedTuple):
    """The options of commands that judge what rule files would have done to runs."""

    judging: JudgingOptions = JudgingOptions()
    saves: SavesOption = "keep"
    ray: RayOption = None


class RiskOptions(NamedTuple):
    """The options of commands that judge stops: what a run may lose by one, in how many runs, and how sure that is.

    None has a default here: a certificate has its own, and a recommendation takes its risk from the noise.
    """

    risk: Annotated[
        str | None,
        typer.Option(
            metavar="RISK",
            show_default="regret > 1%",
            help="What a run may not lose: 'regret > 1%', 'deployable_regret > 2%', or 'mean regret' with --cap.",
        ),
    ] = None
    at_most: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT",
            show_default="10%",
            help="Share of runs in which it may, each family as one; for 'mean regret', the mean itself.",
        ),
    ] = None
    cap: Annotated[
        str | None,
        typer.Option(metavar="REGRET", help="For 'mean regret': the most regret that one run counts with."),
    ] = None
    confidence: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            show_default="90%",
            help="Probability that the limit is kept, over the choice of the runs.",
        ),
    ] = None


class BacktestArguments(NamedTuple):
    """Report what a rule file would have saved and cost on recorded runs.

    Replays the rule file over the named runs, over all runs of the store, or over the logs at --history. The cost is
    regret: how much worse the best evaluation before a stop is than the best of the whole run.
    """

    policy: Annotated[
        str,
        typer.Argument(metavar="RULES", help="A rule file, or the name of a shipped one."),
    ]
    chosen: RunsOptions = RunsOptions()
    replaying: ReplayingOptions = ReplayingOptions()
    risk: RiskOptions = RiskOptions()
    settings: SetOption = None
    baselines: Annotated[
        list[str] | None,
        typer.Option("--baseline", metavar="NAME", help="Also compare with this baseline; 'all' for every one."),
    ] = None
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of labelled incidents: run, first_step, last_step, name.")
    ] = None
    delay: Annotated[
        int,
        typer.Option(
            metavar="STEPS",
            min=0,
            help="Further updates between the decision to stop and the stop. Late values delay the decision anyway.",
        ),
    ] = 0
    cost_per_hour: Annotated[
        float | None, typer.Option(metavar="AMOUNT", min=0, help="Cost of one hour of one rank.")
    ] = None
    html: HtmlOption = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A certificate of this rule file, by default the one beside it: its own risk judges the stops. "
            "Says which runs it does not cover.",
        ),
    ] = None
    as_json: JsonOption = False


class SweepArguments(NamedTuple):
    """Backtest every combination of a rule file's params.

    A variant is one combination. Prints the best trade-offs, most steps saved first: the variants for which no other
    saves more steps at no more mean regret. Regret is how much worse the best evaluation before a stop is than the
    run's best. Lost is the share of runs that a stop spoils by --risk. The runs
    that chose these variants flatter them: --split states by how much. With --json, prints every
    variant, one per line; stderr then lists what the slower event engine evaluated, and the excluded runs.
    """

    policy: PolicyArgument
    chosen: RunsOptions = RunsOptions()
    settings: ValuesOption = None
    replaying: ReplayingOptions = ReplayingOptions()
    risk: RiskOptions = RiskOptions()
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
    """Choose the variant of a rule file that saves most while it keeps a stated risk.

    Every combination of the values is a variant. It is tested on all runs; each family counts as one. The chosen one
    keeps the limit on runs like these with the stated confidence, however many variants were tried.
    Exits with 1 if no variant can be certified, and with --check if something has changed.
    """

    policy: Annotated[
        str | None,
        typer.Argument(
            metavar="RULES",
            help="A rule file, or the name of a shipped one. With --check, the certificate's own if left out.",
        ),
    ] = None
    chosen: RunsOptions = RunsOptions()
    settings: ValuesOption = None
    risk: RiskOptions = RiskOptions()
    replaying: ReplayingOptions = ReplayingOptions()
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the certificate to this file.")
    ] = None
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Check a certificate: is its rule file unchanged, and with RUN or --store, are its logs?",
        ),
    ] = None
    as_json: JsonOption = False


class RecommendArguments(NamedTuple):
    """Say which rule is worth arming, what it saves and what it risks.

    Reads other tools' logs or the runs of a store. Tries the common forms of stopping rules (patience, overfitting,
    loss spikes), each with a save before the stop. Certifies the best of them on some families, and reports it on the
    others. Where the runs are too few, it names a candidate that only records what it would do. Without --risk, a stop
    may cost the least of 1, 2, 5 and 10% that the metric's noise does not hide.
    Exit status 0 when a rule is recommended, 1 when none is.
    """

    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOGS...", readable=False, help="Other tools' logs and folders of them, imported into a cache."
        ),
    ] = None
    store: StoreOption = None
    where: WhereOption = None
    objective: ObjectiveOption = None
    family: FamilyOption = None
    risk: RiskOptions = RiskOptions()
    search: Annotated[
        bool,
        typer.Option("--search", help="Also judge halving by rank within each family, as a search of it would do."),
    ] = False
    cost_per_hour: Annotated[
        float | None, typer.Option(metavar="AMOUNT", min=0, help="Cost of one hour of one rank.")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the rule file; and its certificate beside it, as .json."
        ),
    ] = None
    processes: ProcessesOption = None
    ray: RayOption = None
    as_json: JsonOption = False


class DiffArguments(NamedTuple):
    """Compare the behaviour of two rule files on recorded runs.

    Prints the changes per run and in total, as Markdown for a pull request. Behaviour is which operations are ordered,
    and when: renaming or rewriting a controller is no change. Exit status 1 when the behaviour changes in any run.
    """

    old: Annotated[str, typer.Argument(metavar="OLD", help="A rule file, or the name of a shipped one.")]
    new: Annotated[str, typer.Argument(metavar="NEW", help="The rule file to compare with it.")]
    runs: RunsArgument = None
    store: StoreOption = None
    judging: JudgingOptions = JudgingOptions()
    old_settings: Annotated[
        list[str] | None, typer.Option("--set-old", metavar="PARAM=VALUE", help="Set a param of OLD; repeatable.")
    ] = None
    new_settings: Annotated[
        list[str] | None, typer.Option("--set-new", metavar="PARAM=VALUE", help="Set a param of NEW; repeatable.")
    ] = None
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
        float,
        typer.Option(metavar="P", help="Largest probability of keeping a candidate whose runs are drawn like A's."),
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

    Replays the rule file that each run was recorded with, and checks the digests that were taken at its end. An
    outcome is a decision, a rule error or a rule warning.
    Exit status 1 when they differ, 2 when a run cannot be opened.
    """

    runs: RunsArgument = None
    store: StoreOption = None
    as_json: JsonOption = False


class CheckArguments(NamedTuple):
    """List every error and warning in rule files.

    Prints each error and warning as path:line:column: message, with the line and a caret below. With folders of
    runs, or --store STORE for all of its runs, also checks the rules against these runs: metrics that were never
    recorded, and windows and patience that are longer than the runs. Says how many of the runs lack a metric that
    others have, and in how many the rules could not fire, whatever their values.
    Exit status 1 when there is an error or a warning, 2 when a rule file or a run cannot be opened.
    """

    policies: Annotated[
        list[str],
        typer.Argument(metavar="RULES... [RUN...]", help="Rule files, or the names of shipped ones; folders of runs."),
    ]
    store: StoreOption = None
    settings: SetOption = None
    renames: RuleRenameOption = None
    plan: PlanOption = None
    ignored: Annotated[
        list[FindingCode] | None,
        typer.Option("--ignore", parser=one_of(*FindingCode), metavar="WARNING", help="Leave out one kind of warning."),
    ] = None
    as_json: JsonOption = False


class TestArguments(NamedTuple):
    """Run the unit tests of rule files.

    A test file names a rule file, series of values in a short notation, and the expected decisions. The documents
    describe it in "Check and test rules". Exit status 1 when a test fails, 2 when one of the files does not load.
    """

    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Test files, or names of shipped rule files.")]
    as_json: JsonOption = False


class RulesArguments(NamedTuple):
    """List the rule files that come with steptape, print one, or print the full form of rules.

    The full form is a rule file of the same digest: with what the file extends, and sentences as controllers.

    Every command that takes a rule file takes the name of a shipped one and sentences, too.
    """

    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print this rule file: the name of a shipped one, or a file.")
    ] = None
    expand: Annotated[
        str | None,
        typer.Option(
            metavar="RULES", help="Print the full form of a rule file, or of sentences; ';' separates several."
        ),
    ] = None
    as_json: JsonOption = False


class ReplayArguments(NamedTuple):
    """Print what a rule file decides over one recorded run.

    With --json, prints one decision, rule error or rule warning per line. Its event_index counts the events of rank 0
    from 0. It skips events that a resume rolled back, and the recorded decisions, errors and warnings of live rules.

    With --lr, prints for each update of the record the rate of the schedule, the scheduled rate with the rule file's
    reductions, and the used one. The losses are those of the record, so all after the first change is censored.

    With --record, prints the values that the run would hold of the definitions and states under the file's 'record'.

    With --experts, prints what LLEP would have made of the recorded tokens of experts, by the file's metric of class
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
        bool, typer.Option("--lr", help="Print the learning rates that the rules would have set instead.")
    ] = False
    has_derived: Annotated[
        bool, typer.Option("--record", help="Print the values that the rule file records instead.")
    ] = False
    has_experts: Annotated[
        bool, typer.Option("--experts", help="Print what LLEP would have made of the experts' tokens instead.")
    ] = False
    as_json: JsonOption = False


class RunsArguments(NamedTuple):
    """List the newest runs of a store, oldest first.

    A field is a fact of every run (name, status, steps, ...), a key of the configuration or a metric, whose newest
    value counts: 'min(eval/loss)' is its least. With --sort, the first runs of that order come first.
    """

    store: StoreOption = None
    where: WhereOption = None
    sort: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Sort by a field, such as eval/loss; -FIELD is descending.")
    ] = None
    columns: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="Fields to print, such as lr,min(eval/loss).")
    ] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most runs to list, the newest. 100 in a table, all as JSON.")
    ] = None
    as_json: JsonOption = False


class ShowArguments(NamedTuple):
    """Show one run: its curve, metrics and decisions."""

    run: RunArgument
    store: StoreOption = None
    plotted: Annotated[
        list[str] | None, typer.Option("--plot", metavar="METRIC", help="Plot this metric; repeatable.")
    ] = None
    as_json: JsonOption = False


class HealthArguments(NamedTuple):
    """Print what is wrong with a run, one line for each group of metrics.

    Replays a rule file over the run. A rule fires now if it has fired, and was true at each evaluation since: a run
    keeps the state of its end. A group whose metrics the run lacks is not evaluable, and the line names them. Any
    metric whose newest value is NaN or infinite is critical, whatever its name. Causes and actions follow, from the
    rule file's controllers whose names begin with diagnosis_.
    Exit status 1 when a group is critical or has a warning, 3 when no group of the rules could be evaluated.
    """

    run: RunArgument
    store: StoreOption = None
    policy: Annotated[
        str, typer.Option("--rules", metavar="RULES", help="A rule file, or the name of a shipped one.")
    ] = "nano_train"
    settings: SetOption = None
    renames: RuleRenameOption = None
    plan: PlanOption = None
    as_json: JsonOption = False


class TailArguments(NamedTuple):
    """Print a run's events as they are written, until it ends.

    Ctrl-C stops it. Exit status 1 when the run failed or crashed. With --json, prints one event per line, as
    'export' writes them.
    """

    run: RunArgument
    store: StoreOption = None
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Number of existing events to print first.")
    ] = 10
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Print only events of this kind; repeatable.")
    ] = None
    as_json: JsonOption = False


class SamplesArguments(NamedTuple):
    """Print the samples that drove a loss spike, or those that stay hard.

    With --step, the highest losses come first. The excess is a sample's loss minus the normal loss: the median of the
    50 updates before. The share is its part of all excess. A sample was seen and had its earlier loss before the spike.

    Without --step, samples with an id are ranked over the whole run, by the least by which their loss lay above the
    median of its batch. A wrong label stays far above; a sample that was hard once does not.
    """

    run: RunArgument
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="The step with the spike.")] = None
    radius: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Updates before and after it that belong to the spike; 0 by default."),
    ] = None
    store: StoreOption = None
    as_json: JsonOption = False


class QueryArguments(NamedTuple):
    """Run read-only SQL over a store, or over one run.

    Views: runs, run_summary, events, steps, evals, saves, samples, vectors, decisions, metric_values, windows. Table
    macros: series(name), rolling(n), spiking_samples(step).
    """

    sql: Annotated[str, typer.Argument(metavar="SQL", help="One read-only SQL statement over the views.")]
    run: OneRunArgument = None
    store: StoreOption = None
    as_json: JsonOption = False


class AlertArguments(NamedTuple):
    """Send a message when a run dies, stalls, runs again or ends, or when its rules act.

    Watches a store, also one to which runs are pushed, until Ctrl-C ends it. What happened before its first start is
    no news. The store keeps what was sent, for the next start. Messages go to apprise's addresses, of Slack, Discord,
    Telegram, mail, web hooks and more. A process list shows a command line: put addresses with secrets into
    STEPTAPE_NOTIFY.
    """

    store: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE", show_default=False, help="Folder of runs; by default STEPTAPE_STORE, else 'runs'."
        ),
    ] = None
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="URL",
            help="Where messages go, such as slack://... or mailto://...; repeatable; else STEPTAPE_NOTIFY.",
        ),
    ] = None
    where: WhereOption = None
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address of the server that shows the store, for links; else STEPTAPE_URL."),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Look once. Exit status 1 when a message was not taken.")] = False
    test: Annotated[
        bool, typer.Option("--test", help="Send one test message. Exit status 1 when an address did not take it.")
    ] = False


class ServeArguments(NamedTuple):
    """Serve the web pages and the HTTP API of a store.

    The pages are at /, the API is under /api/v1 and described in /api/v1/openapi.json. Creates the store if there is
    none, and shows its runs as they come. Ctrl-C stops the server. Tokens may also be in the environment variable
    STEPTAPE_TOKENS.
    """

    store: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE",
            show_default=False,
            help="Folder of runs, or s3://BUCKET/PREFIX; by default STEPTAPE_STORE, else 'runs'.",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on; one that other machines can reach needs tokens.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8420
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of lines 'token scope name'; scopes: record, read, write, admin."),
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="A host name by which clients reach this server."),
    ] = None
    quota: Annotated[
        float | None, typer.Option(metavar="GB", min=0, help="Most gigabytes of the runs that one token pushes; 1000.")
    ] = None
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Path under which a reverse proxy serves this server, as /steptape.")
    ] = ""
    rules_folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of rule files that clients can use by name, and save to."),
    ] = None
    gauges: Annotated[
        list[str] | None,
        typer.Option("--gauge", metavar="METRIC", help="A metric of running runs that /metrics has for Prometheus."),
    ] = None
    log_level: LogLevelOption = "warning"
    log_format: LogFormatOption = "text"


class DocsArguments(NamedTuple):
    """Print where the documents are.

    The reference of the rule language, of the store format and of imports comes with the package, as Markdown.
    """


class DemoArguments(NamedTuple):
    """Train a small model, backtest two rule files on it, train under them, and compare.

    Writes its runs to the store. Exit status 1 when a run under rules differs from its backtest or from its replay.
    """

    store: StoreOption = None
    with_torch: Annotated[
        bool,
        typer.Option("--torch", help="Train with torch on scikit-learn's digits, not with numpy on made-up data."),
    ] = False


class ImportArguments(NamedTuple):
    """Import past runs from the logs of other tools.

    Kinds: auto, json, jsonl, mlflow, optuna, parquet, stable_baselines, table (CSV, TSV), tensorboard, text, trackio,
    trainer_state, wandb.
    IMPORT.md, installed in steptape/reference, describes what each log becomes. Importing again adds only what is new.
    Exit status 1 when a log could not be read; the others are still imported.
    """

    kind: Annotated[str, typer.Argument(metavar="KIND", help="The tool that wrote the logs; 'auto' detects it.")]
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", readable=False, help="Log files, and folders of them.")
    ]
    store: StoreOption = None
    follow: Annotated[bool, typer.Option("--follow", help="Keep importing logs that grow, until Ctrl-C.")] = False
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Pattern of a line of a text log. Its named groups are metrics; one is 'step'."
        ),
    ] = None
    step: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column or key that counts steps, if several could.")
    ] = None
    run: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column or key that tells the runs of a table apart.")
    ] = None
    evaluation: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column or metric of held-out data, though its name does not say so."),
    ] = None
    steps_per_epoch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Training steps in an epoch, for evaluations that count epochs."),
    ] = None
    renames: RenameOption = None
    ray: RayOption = None
    as_json: JsonOption = False


class AskArguments(NamedTuple):
    """Ask a running run to stop, or for a checkpoint or an evaluation.

    Its loop sees 'should_stop', 'should_save' or 'should_evaluate', as after a rule's order. A run that stops ends as
    'stopped'. The run records who asked.
    """

    operation: Annotated[
        Literal["stop", "save", "evaluate"],
        typer.Argument(
            parser=one_of("stop", "save", "evaluate"), metavar="stop|save|evaluate", help="What the run shall do."
        ),
    ]
    run: RunArgument
    store: StoreOption = None
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded in the run.")] = ""


class NoteArguments(NamedTuple):
    """Note something about runs: a text, another name, tags, the archive.

    Lists, tables, SQL, HTTP and the page then show the name and the tags. Lists leave out archived runs, and count
    them; SQL and replays take them like others. What was recorded stays, and with it digests, verdicts and families.
    """

    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs: each its id or name, or a path.")]
    store: StoreOption = None
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="The note itself.")] = ""
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", show_default=False, help="Show the runs under this name.")
    ] = None
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Add a tag; repeatable.")] = None
    untag: Annotated[list[str] | None, typer.Option("--untag", metavar="TAG", help="Remove a tag; repeatable.")] = None
    archive: Annotated[
        bool | None,
        typer.Option(
            "--archive/--unarchive", show_default=False, help="Leave the runs out of lists, or list them again."
        ),
    ] = None


#: The formats that ``export`` writes.
ExportFormat: TypeAlias = Literal["jsonl", "csv", "parquet"]


class ExportArguments(NamedTuple):
    """Write a run's events as JSON lines, CSV or Parquet.

    CSV and Parquet have one row per event, with a column for each metric, empty or null where the event lacks it.
    """

    run: RunArgument
    store: StoreOption = None
    form: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            parser=one_of("jsonl", "csv", "parquet"),
            metavar="jsonl|csv|parquet",
            help="Format; by default that of the file's suffix, jsonl without one.",
        ),
    ] = None
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.")] = None
    every: Annotated[bool, typer.Option("--all", help="Include the events that a resume rolled back.")] = False


class SealArguments(NamedTuple):
    """Convert the journals of ended runs to Parquet.

    A journal is the file that a run appends its events to. Skips journals that a live process still writes and, without
    --other-hosts, those of other machines.
    """

    runs: RunsArgument = None
    store: StoreOption = None
    other_hosts: Annotated[
        bool,
        typer.Option("--other-hosts", help="Also other machines' journals; only safe if none still writes there."),
    ] = False
    as_json: JsonOption = False


class PushArguments(NamedTuple):
    """Bring runs to a server, another folder or object storage, and prove that both logs are equal.

    STORE is a folder of runs, or one run's folder. Only what the target lacks is sent, so a push may be interrupted and
    repeated. At the end of a run both ends are sealed, and the digests of their logs are compared. With --log-level or
    --log-format, writes a log to stderr instead of messages.
    """

    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of runs, or s3://BUCKET/PREFIX.")]
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="http(s)://HOST[:PORT], s3://BUCKET/PREFIX, file://PATH or a folder."),
    ]
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: push events as they are written, and new runs. Ctrl-C ends it.")
    ] = False
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the token, of scope 'record'; else STEPTAPE_TOKEN holds it."),
    ] = None
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Give up when the target is away for so long; 60, or never."),
    ] = None
    log_level: LogLevelOption = None
    log_format: LogFormatOption = None
    as_json: JsonOption = False


class DeleteArguments(NamedTuple):
    """Delete runs by name, by age, or all but the newest.

    Deletes the whole folder of a run, with any checkpoints in it. Never deletes a run that is still being written. Asks
    first; where there is no terminal, --yes answers.
    """

    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Runs to delete: ids or names, or paths.")
    ] = None
    store: StoreOption = None
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Runs that ended longer ago, such as 90d or 12h.")
    ] = None
    keep_last: Annotated[int | None, typer.Option(metavar="N", min=0, help="All but the newest N.")] = None
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False
    as_json: JsonOption = False


class DoctorArguments(NamedTuple):
    """Find damage in a store or a run, and print what to do about it.

    Reads every file and changes nothing. Exit status 1 when it finds damage. With --json, prints one finding per line.
    """

    run: OneRunArgument = None
    store: StoreOption = None
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="Check the training, too: updates, micro-batches, plan and ranks, and what a resume did to its data.",
        ),
    ] = False
    as_json: JsonOption = False

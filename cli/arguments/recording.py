"""The arguments of ``demo``, ``import`` and ``ask``."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from ..options import JsonOption, RayOption, RenameOption, RunArgument, StoreOption, one_of


class DemoArguments(NamedTuple):
    """Train a small model, backtest two policies on it, train under them, and compare.

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

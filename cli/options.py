"""Declares the options and arguments that commands share, each once. Nothing here loads another room.

They have no ``from __future__ import annotations``, nor have the modules of ``arguments``: typer reads the annotations
of a ``NamedTuple`` as they are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer


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
    str, typer.Argument(metavar="RUN", help="Its id, name or NAME@N in the store; with a '/', its path.")
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
    str, typer.Argument(metavar="POLICY", help="A policy file, or the name of a shipped policy.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PARAM=VALUE", help="Set a param of the policy; repeatable.")
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PARAM=VALUES", help="Values to try: a list 1,2,3 or a range FIRST:LAST:STEP."),
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
        help="Rename a metric as policies call it, such as val_loss=eval_loss; repeatable.",
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

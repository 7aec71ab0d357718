"""Names steptape's words for those of other tools: arguments and methods that a ``Recorder`` lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...store.errors import shortened
from ..arguments import MOVED_ARGUMENTS

#: What replaces an argument of another tool's run.
_ARGUMENTS: Final = {
    **dict.fromkeys(("project", "experiment"), "Use group= for related runs, name= for this one"),
    **dict.fromkeys(("entity", "job_type", "team"), "Use group= or tags="),
    **dict.fromkeys(("run_name", "experiment_name", "display_name"), "Use name="),
    **dict.fromkeys(("hparams", "params", "hyperparameters"), "Use config="),
    **dict.fromkeys(("dir", "logdir", "log_dir", "save_dir", "path"), "Give the store's folder as first argument"),
    **dict.fromkeys(("notes", "description"), "Use annotate(text)"),
    **dict.fromkeys(("policy", "policies"), "Use rules="),
    **dict.fromkeys(("silent", "verbose"), "Use quiet="),
    "id": "Use run_id=",
}

#: What replaces a method of another tool's run.
_METHODS: Final = {
    **dict.fromkeys(("finish", "end", "end_run", "stop", "flush"), "Use close()"),
    **dict.fromkeys(
        ("log_metrics", "log_metric", "log_scalar", "log_dict", "add_scalar", "add_scalars", "track", "append"),
        "Use step(...) for an update, log(...) for other values",
    ),
    **dict.fromkeys(
        ("init", "start", "log_params", "log_param", "log_hyperparams", "log_config", "add_hparams", "config"),
        "Give config= to Recorder(...)",
    ),
    **dict.fromkeys(("log_artifact", "save_checkpoint", "log_model"), "Use save(path) for a checkpoint"),
    **dict.fromkeys(("summary", "set_summary"), "Use log(...), or annotate(text) for a note"),
    **dict.fromkeys(("alert", "add_text", "log_text"), "Use annotate(text)"),
    **dict.fromkeys(("name", "id", "dir", "path", "url"), "Use folder or run_id"),
}


#: The call for a kind of event that ``Recorder.event`` does not record.
OWN_METHODS: Final = {
    "step_end": "Use step(...)",
    **{kind: f"Use {kind}(...)" for kind in ("log", "evaluate", "save", "epoch_begin", "epoch_end")},
    "annotation": "Use annotate(text)",
    "failure": "Use fail(error)",
    "plan": "Use declare(...)",
    "ranks": "Use agree()",
    "span": "Use 'with rec.span(name):'",
    "system": "Use watch_system()",
    **dict.fromkeys(("init_end", "train_begin", "train_end"), "The recorder records it itself"),
}


def unknown_argument(name: str, value: object, known: Iterable[str]) -> str:
    """Return the message for an argument that ``Recorder`` does not take."""
    if name in MOVED_ARGUMENTS:
        return f"Recorder takes no argument {name!r}. Write {MOVED_ARGUMENTS[name].format(shortened(repr(value)))}"
    return f"Recorder takes no argument {name!r}. {_ARGUMENTS.get(name) or _nearest(name, known)}".rstrip()


def unknown_attribute(name: str, known: Iterable[str]) -> str:
    """Return the message for an attribute that a recorder does not have."""
    public = [each for each in known if not each.startswith("_")]
    return f"Recorder has no {name!r}. {_METHODS.get(name) or _nearest(name, public)}".rstrip()


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # Only a wrong call needs it.

    close = get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""

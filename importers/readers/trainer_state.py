"""Reads Hugging Face's ``trainer_state.json``: the log history of a Trainer and the checkpoints that it names.

The history alone, a list that people write with ``json.dump``, is read alike.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...store.metric_words import is_evaluation
from ...store.plan import Plan
from ..encodings.numbers import number_of, sorted_out, step_of
from ..source import Fact, ImportedRun, Omissions, ReadOptions, UnreadableSource

NAME: Final = "trainer_state.json"

_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{1,18})")

#: The first row of a history alone, and names in it that no list of other tools has.
_FIRST_ROW: Final = re.compile(rb"\s*\[\s*(\{[^{}]*\})")
_TRAINERS_OWN: Final = re.compile(rb'"(?:eval_\w+|train_runtime|learning_rate|grad_norm)"\s*:')

#: The mean training loss since the last row.
_LOSS: Final = "loss"

#: A state with a million log entries has about 200 MB.
MOST_BYTES: Final = 512 * 1024 * 1024

#: Keys of the state that hold training settings.
_SETTINGS: Final = ("train_batch_size", "logging_steps", "eval_steps", "save_steps", "trial_name", "trial_params")


class TrainerStateReader:
    """Reader for ``trainer_state.json`` of an output folder and of its checkpoints, which together are one run.

    The state in a checkpoint holds the history up to that point, so the longest history is read.
    """

    kind = "trainer_state"
    title = "Hugging Face trainer_state.json"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is a JSON object with a Trainer state's file name or its ``log_history``, or such a list."""
        if head.lstrip()[:1] == b"{":
            return path.name == NAME or (b'"log_history"' in head and path.suffix == ".json")
        return path.suffix == ".json" and _is_history(head)

    def source_of(self, path: Path) -> Path:
        """Return the output folder, if the state is in one of its checkpoints; else the state's own folder or file."""
        if path.name != NAME:
            return path
        folder = path.parent
        return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder

    def beside(self, path: Path) -> Iterable[Path]:  # noqa: ARG002
        """Return nothing: every file of the source is itself recognised."""
        return ()

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:  # noqa: ARG002
        """Yield the run; its facts end with an error if a part could not be read."""
        states: list[tuple[Path, Mapping[str, Any]]] = []
        problems: list[UnreadableSource] = []
        for path in files:
            try:
                states.append((path, _state(path)))
            except UnreadableSource as error:
                problems.append(error)
        if not states:
            raise problems[0]
        path, state = max(states, key=lambda entry: len(entry[1]["log_history"]))
        yield ImportedRun(
            _facts(path, state, _checkpoints(files, state), problems),
            config={name: state[name] for name in _SETTINGS if state.get(name) is not None},
            plan=_plan(state),
            status="completed" if _is_finished(state) else None,
            nan_filtered=_nan_filtered(state),
            step_unit="updates",
        )


def _is_history(head: bytes) -> bool:
    """Whether a file begins with a list of the Trainer's rows: with a step, an epoch and a loss, of one kind each."""
    match = _FIRST_ROW.match(head)
    try:
        row = {} if match is None else json.loads(match[1])
    except (ValueError, RecursionError):
        return False
    losses = [name for name in row if name.endswith(_LOSS)]
    is_row = {"step", "epoch"} <= row.keys() and losses in (["loss"], ["eval_loss"])
    return is_row and _TRAINERS_OWN.search(head) is not None


def _state(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UnreadableSource(f"larger than {MOST_BYTES} bytes", where=str(path))
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableSource(f"not JSON, or incomplete ({error})", where=str(path)) from None
    if isinstance(document, list):
        return {"log_history": document}
    if not isinstance(document, dict) or not isinstance(document.get("log_history"), list):
        raise UnreadableSource("not a trainer's state: it has no list 'log_history'", where=str(path))
    return document


def _facts(
    path: Path, state: Mapping[str, Any], checkpoints: Mapping[int, dict[str, object]], problems: list[UnreadableSource]
) -> Iterator[Fact]:
    """Yield the history, with each checkpoint after the last row up to its step."""
    pending = sorted(checkpoints.items())
    omissions = Omissions(str(path))
    for index, row in enumerate(state["log_history"]):
        try:
            facts = list(_facts_of_row(row, f"log_history[{index}]"))
        except UnreadableSource as error:
            omissions.add(f"log_history[{index}]", error.what)
            continue
        while pending and facts and facts[0].step > pending[0][0]:
            yield _save(*pending.pop(0))
        yield from facts
    for step, attrs in pending:
        yield _save(step, attrs)
    for problem in problems:
        raise problem
    omissions.tell()


def _facts_of_row(row: Any, where: str) -> Iterator[Fact]:
    """Yield the events of one row of the history.

    A training row becomes both a ``step_end`` and a ``log``, as the Trainer's callbacks see it. Policies written for
    its trainer controller read the ``log``, others the ``step_end``.
    """
    if not isinstance(row, dict):
        raise UnreadableSource("a row must be an object", where=where, got=row)
    values = dict(row)
    step = step_of(values.pop("step", None), where)
    epoch = values.pop("epoch", None)
    metrics, attrs = sorted_out(values)
    at = number_of(epoch)
    if any(is_evaluation(name) for name in metrics):
        yield Fact("evaluate", step, metrics, at, attrs=attrs)
    elif "train_runtime" in metrics:  # The summary of the whole training.
        yield Fact("log", step, metrics, at, attrs=attrs)
    elif metrics or attrs:
        yield Fact("step_end", step, metrics, at, attrs=attrs)
        yield Fact("log", step, metrics, at)


def _save(step: int, attrs: dict[str, object]) -> Fact:
    return Fact("save", step, attrs=attrs)


def _checkpoints(files: Sequence[Path], state: Mapping[str, Any]) -> dict[int, dict[str, object]]:
    """Return the checkpoints known to have been saved, by step: those on disk, and the best one."""
    found: dict[int, dict[str, object]] = {}
    best = state.get("best_model_checkpoint")
    names = [file.parent.name for file in files] + ([Path(best).name] if isinstance(best, str) else [])
    for name in names:
        if match := _CHECKPOINT.fullmatch(name):
            found[int(match[1])] = {"path": name}
    return found


def _plan(state: Mapping[str, Any]) -> Plan:
    total_steps, epochs = state.get("max_steps"), state.get("num_train_epochs")
    return Plan(
        total_steps=total_steps if type(total_steps) is int and 0 < total_steps < 2**63 else None,
        total_epochs=epochs if type(epochs) is int and 0 < epochs < 2**63 else None,
    )


def _is_finished(state: Mapping[str, Any]) -> bool:
    """Whether all planned steps were done; False without both numbers."""
    done, planned = state.get("global_step"), state.get("max_steps")
    return type(done) is int and type(planned) is int and 0 < planned <= done


def _nan_filtered(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return ``loss``, unless the history holds one that is not finite.

    By default the Trainer logs the mean of earlier losses for such a loss (``logging_nan_inf_filter``). Its state does
    not say whether it did.
    """
    losses = (number_of(row.get(_LOSS)) for row in state["log_history"] if isinstance(row, dict))
    return (_LOSS,) if all(loss is None or math.isfinite(loss) for loss in losses) else ()

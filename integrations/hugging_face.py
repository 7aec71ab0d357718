"""Reads what Hugging Face's ``Trainer`` says of a training: names, arguments, length, checkpoints, completions.

Takes the arguments and the state of a trainer; returns arguments for a ``Recorder``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..recorder.arguments import GROUPS, Arguments
from ..rules.policy_file.policy import Policy, triggering_kinds
from ..store.errors import TelemetryError
from ..store.reading.tally import NUM_SAMPLES, NUM_TOKENS

#: Events that come several times a step, and that few policies need.
_FREQUENT: Final = frozenset(("step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "prediction_step"))

#: Arguments of the trainer that are no hyper-parameters: they differ from one start of the same training to the next.
_NOT_HYPERPARAMETERS: Final = frozenset(("logging_dir", "resume_from_checkpoint"))


class Tap:
    """A function whose results are shown to another one, with the arguments."""

    def __init__(self, function: Callable[..., Any], show: Callable[..., object]) -> None:
        self.function, self._show = function, show

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        result = self.function(*args, **kwargs)
        self._show(result, *args)
        return result


def loss_scale(optimizer: Any) -> float:
    """Return the factor of the loss under mixed precision; 1.0 without a scaler."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else float(scaler.get_scale())


def run_names(args: Any, state: Any) -> dict[str, str]:
    """Return the run's name, and its group if it is one trial of a search."""
    folder = Path(args.output_dir).name
    wandbs = getattr(getattr(sys.modules.get("wandb"), "run", None), "name", None) or os.environ.get("WANDB_NAME")
    name = str(wandbs or folder) if args.run_name in (None, args.output_dir) else str(args.run_name)
    return {"name": state.trial_name or name, "group": name} if state.is_hyper_param_search else {"name": name}


def run_config(args: Any, state: Any, model: Any = None) -> Mapping[str, Any]:
    """Return the hyper-parameters, those of a trial included, and as ``model.NAME`` those of the model."""
    arguments = {name: value for name, value in args.to_sanitized_dict().items() if name not in _NOT_HYPERPARAMETERS}
    return {**arguments, **(state.trial_params or {}), **_model_config(model)}


def _model_config(model: Any) -> Mapping[str, Any]:
    """Return the plain values of a model's config and of its adapter's, and the number of its parameters."""
    config, peft = getattr(model, "config", None), getattr(model, "peft_config", None)
    adapter = next(iter(peft.values()), None) if isinstance(peft, Mapping) else None
    found: dict[str, Any] = {}
    for prefix, each in (("model", config), ("peft", adapter)):
        values: Mapping[str, Any] = getattr(each, "to_dict", dict)()
        plain = {key: value for key, value in values.items() if isinstance(value, (bool, int, float, str))}
        found |= {f"{prefix}.{key}": plain[key] for key in plain if not key.startswith(("_", "transformers_version"))}
    if hasattr(model, "parameters"):
        found["model.num_parameters"] = sum(each.numel() for each in model.parameters())
    return found


def counts_of(inputs: Any) -> Mapping[str, Any]:
    """Return the samples and tokens of a micro-batch, as far as its inputs show them; padding does not count."""
    if isinstance(inputs, (list, tuple)):
        return {NUM_SAMPLES: len(inputs)}
    if not isinstance(inputs, Mapping) or (ids := inputs.get("input_ids")) is None or not hasattr(ids, "numel"):
        return {}
    mask = inputs.get("attention_mask")
    return {NUM_SAMPLES: len(ids), NUM_TOKENS: ids.numel() if mask is None else mask.sum()}


def run_plan(args: Any, state: Any) -> Arguments:
    """Return the planned length. That of an epoch is known only where epochs, and not steps, were asked for."""
    plan = {"total_steps": state.max_steps}
    epochs = state.num_train_epochs
    is_by_steps, asked = args.max_steps > 0, args.num_train_epochs
    # The trainer's number for data of unknown length, and a part of an epoch, which it rounds up.
    if epochs < sys.maxsize and (is_by_steps or asked == int(asked)):
        plan["total_epochs"] = epochs
        if not is_by_steps and epochs == asked and state.max_steps % epochs == 0:
            plan["steps_per_epoch"] = state.max_steps // epochs
    return plan


def checkpoint_path(folder: str, step: int) -> str:
    """Return the path of a step's checkpoint. A trial of a search has a folder of its own within the trainer's."""
    path = Path(folder) / f"checkpoint-{step}"
    if not path.exists():
        with contextlib.suppress(OSError):
            return str(max(path.parent.glob(f"*/{path.name}"), key=lambda each: each.stat().st_mtime_ns, default=path))
    return str(path)


def stopper(trainer: Any) -> str:
    """Return the name of the callback that stopped the training, if it is known."""
    handler = getattr(trainer, "callback_handler", None)
    for callback in getattr(handler, "callbacks", ()):
        patience = getattr(callback, "early_stopping_patience", None)
        if patience is not None and callback.early_stopping_patience_counter >= patience:
            return type(callback).__name__
    return "the trainer or another callback"


def completions_of(
    trainer: Any, rewards: Any, _inputs: Any, _prompts: Any, completions: Sequence[Any], tokens: Sequence[Any]
) -> Mapping[str, object]:
    """Return what this rank generated, one entry per completion in each array. Numbers that are not finite are None.

    Args:
        trainer: TRL's ``GRPOTrainer``.
        rewards: The return value of its ``_calculate_rewards``. Shape (completions of all ranks, components).
        completions, tokens: Arguments of that call: those of this rank.
    """
    first = trainer.accelerator.process_index * len(completions)
    rows = rewards[first : first + len(completions)].tolist()
    texts = [each if isinstance(each, str) else json.dumps(each) for each in completions]
    return {
        "ids": [hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in texts],
        "groups": [(first + place) // trainer.num_generations for place in range(len(texts))],
        "tokens": [len(each) for each in tokens],
        "rewards": {
            name: [row[place] if math.isfinite(row[place]) else None for row in rows]
            for place, name in enumerate(trainer.reward_func_names)
        },
    }


def exported_arguments(store: Any, rules: Any, kinds: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of the callback that JSON can keep."""
    if isinstance(rules, Policy):
        rules = {"text": rules.text, "source": rules.source, "params": dict(rules.params)}
    every = {
        "store": str(store),
        "rules": str(rules) if isinstance(rules, Path) else rules,
        "kinds": kinds if isinstance(kinds, str) else sorted(kinds),
        **arguments,
    }
    kept = {}
    for name, value in every.items():
        if (kind := GROUPS.get(name)) is not None and isinstance(value, kind):
            value = {field: getattr(value, field) for field in kind.__match_args__}
        with contextlib.suppress(TypeError, ValueError):
            json.dumps(value)
            kept[name] = value
    return kept


def with_groups(arguments: Mapping[str, Any]) -> Arguments:
    """Return arguments of ``Recorder`` whose groups are no longer mappings, as ``exported_arguments`` makes them."""
    return {
        name: GROUPS[name](**value) if name in GROUPS and isinstance(value, Mapping) else value
        for name, value in arguments.items()
    }


def frequent_kinds(kinds: str | Collection[str], rules: Any, *, is_given: bool) -> frozenset[str]:
    """Return the frequent kinds to record. The rules of a recorder that the caller made may need any of them."""
    if not isinstance(kinds, str):
        if not _FREQUENT.issuperset(kinds):
            raise TelemetryError(f"kinds must be of {sorted(_FREQUENT)}", got=sorted(kinds))
        return frozenset(kinds)
    if kinds not in ("needed", "all"):
        raise TelemetryError("kinds must be 'needed', 'all' or a collection of kinds of events", got=kinds)
    if kinds == "all" or is_given:
        return _FREQUENT
    return triggering_kinds(rules)

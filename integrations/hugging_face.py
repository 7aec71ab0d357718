"""Reads what Hugging Face's ``Trainer`` says of a training: names, arguments, length, checkpoints, completions.

Takes the arguments and the state of a trainer; returns arguments for a ``Recorder``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Final

import torch

from ..recorder.arguments import GROUPS, Arguments
from ..rules.policy_file.policy import Policy, triggering_kinds
from ..store.errors import TelemetryError
from ..store.reading.tally import NUM_SAMPLES, NUM_TOKENS
from .torch import label_losses, samples_of_tokens

#: Events that come several times a step, and that few policies need.
_FREQUENT: Final = frozenset(("step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "prediction_step"))

#: Arguments of the trainer that are no hyper-parameters: they differ from one start of the same training to the next.
_NOT_HYPERPARAMETERS: Final = frozenset(("logging_dir", "resume_from_checkpoint"))


#: The key under which a batch carries the positions of its samples in the data set, from the worker to the trainer.
_SAMPLE_IDS: Final = "steptape_sample_ids"

#: Kinds of models, as transformers names them, whose logits predict the next label. None is its default.
_SHIFTED: Final = (None, "ForCausalLM", "ForConditionalGeneration", "CsmForConditionalGeneration")


class Tap:
    """A function whose results are shown to another one, with the arguments.

    Args:
        function: The function.
        show: Called with the result and the arguments.
        around: Makes the context, from the arguments, in which the function is called.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        show: Callable[..., object],
        around: Callable[..., contextlib.AbstractContextManager[object]] = lambda *_: contextlib.nullcontext(),
    ) -> None:
        self.function, self._show, self._around = function, show, around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        with self._around(*args):
            result = self.function(*args, **kwargs)
        self._show(result, *args)
        return result


class _Numbered:
    """A data set of a loader, which adds to the samples of a batch their positions. Workers are given it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        return indices, (fetch(indices) if fetch else [self.dataset[index] for index in indices])

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # A copy is being made, which has no attributes yet.
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _Numbering:
    """A collator of batches, which puts the positions of the samples into a batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: tuple[Sequence[Any], Any]) -> Any:
        indices, samples = fetched
        batch = self.collate(samples)
        if isinstance(batch, MutableMapping) and all(isinstance(index, Integral) for index in indices):
            batch[_SAMPLE_IDS] = torch.tensor(indices)
        return batch


def number_samples(loader: Any) -> Callable[[], None] | None:
    """Let the batches of a data loader carry the positions of their samples, whatever fetches and skips them.

    Neither the order of the sampler nor that of the workers matters: a position stays with its sample.

    Returns:
        A function that undoes it; None if the samples have no positions, as those of an ``IterableDataset``.
    """
    inner = getattr(loader, "base_dataloader", loader)  # Accelerate's loader has PyTorch's in it.
    if not isinstance(inner, torch.utils.data.DataLoader) or inner.batch_sampler is None:
        return None
    dataset, collate = inner.dataset, inner.collate_fn
    if isinstance(dataset, (_Numbered, torch.utils.data.IterableDataset)):
        return None
    # A loader refuses another data set by ``setattr``.
    inner.__dict__.update(dataset=_Numbered(dataset), collate_fn=_Numbering(collate))
    return lambda: inner.__dict__.update(dataset=dataset, collate_fn=collate)


def taken_sample_ids(inputs: Any) -> Any:
    """Take the positions of the samples out of a batch, which goes to the model; None without any."""
    return inputs.pop(_SAMPLE_IDS, None) if isinstance(inputs, MutableMapping) else None


def samples_of(model: Any, inputs: Mapping[str, Any], output: Any, *, tokens: bool) -> Arguments:
    """Return the sample losses of a micro-batch, as ``sample_losses`` does.

    Args:
        model: The model, without wrappers.
        inputs: The batch of the trainer, which may keep its labels from the model.
        output: What it returned.
        tokens: As for ``sample_losses``.

    Raises:
        TelemetryError: They cannot be computed.
    """
    losses, counts = _label_losses(model, inputs, output)
    places = inputs.get("position_ids")
    if losses.ndim == 2 and len(losses) == 1 and torch.is_tensor(places) and places.ndim == 2:
        begins = [*(places[0] == 0).nonzero().flatten().tolist(), places.shape[1]]
        if begins[0] == 0 and len(begins) > 2:  # A row in which samples follow each other, as without padding.
            sizes = [end - begin for begin, end in itertools.pairwise(begins)]
            losses, counts = (_in_rows(each, sizes) for each in (losses.detach(), counts))
    return samples_of_tokens(losses, counts, tokens=tokens)


def _in_rows(flat: Any, sizes: list[int]) -> Any:
    """Return the samples of a row, of these sizes, as rows of their own. The row may lack its last value."""
    whole = torch.nn.functional.pad(flat[0], (0, sum(sizes) - flat.shape[1]))
    return torch.nn.utils.rnn.pad_sequence([*torch.split(whole, sizes)], batch_first=True)


def _label_losses(model: Any, inputs: Mapping[str, Any], output: Any) -> tuple[Any, Any]:
    labels, shifted = inputs.get("labels"), inputs.get("shift_labels")
    labels = labels if shifted is None else shifted
    if labels is None or not torch.is_tensor(labels):
        raise TelemetryError("the batch has no labels", got=sorted(map(str, inputs)))
    logits, log_probs, counts = (getattr(output, name, None) for name in ("logits", "log_probs", "label_mask"))
    if log_probs is not None and torch.is_tensor(counts):  # TRL computes these, and no logits.
        return -log_probs, counts
    if not torch.is_tensor(logits):
        fix = "A fused loss, such as Liger's (use_liger_kernel), makes none"
        raise TelemetryError("the model returns no logits", got=type(output).__name__, fix=fix)
    return label_losses(logits, labels, shift=shifted is None and labels.ndim == 2 and _is_shifted(model))


def _is_shifted(model: Any) -> bool:
    """Whether the logits of a model predict the next label.

    Raises:
        TelemetryError: It does not say.
    """
    config = getattr(model, "config", None)
    if not hasattr(model, "loss_type") or config is None:
        fix = "Give the model a config, and loss_type = 'ForCausalLM' if they do, else 'ForTokenClassification'"
        raise TelemetryError("the model does not say whether its logits predict the next label", fix=fix)
    return model.loss_type in _SHIFTED and not getattr(config, "is_encoder_decoder", False)


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

"""The catalogue of training metrics: name, formula, unit, cadence, levels and source of each.

Probes (``rec.watch``) record most of them. Others come from the loop's own values, or are expressions of the rule
language, which the policy ``nano_train`` defines. Names and formulas of the tables follow nano-train's monitoring.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricSource(Enum):
    """The part that provides a metric."""

    PROBE = "probe"
    LOOP = "loop"
    RULE = "rule"


class Cadence(Enum):
    """When a metric has a value."""

    STEP = "every update"
    EMISSION = "every `every` updates"
    CHECK = "every `check_every` updates"
    EVALUATION = "every evaluation"
    SPAN = "every span"
    SAVE = "every checkpoint"
    SAMPLE = "every `system_every_s` seconds"


#: Levels of detail, from the least to the most. Metrics of a level belong to all higher ones, too.
LEVELS: Final = ("minimal", "standard", "debug")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A metric, or the metrics of a pattern.

    Attributes:
        name: Its name in events. ``{block}`` stands for the number of a block from 0, ``{param}`` for the name of a
            parameter, ``{site}`` for that of a normalisation layer, ``{k}`` for a whole number, ``{span}`` for a phase.
        group: The group under which ``steptape health`` shows it.
        formula: What it is, in the catalogue's notation.
        unit: Its unit; empty for a ratio, a norm or a flag.
        cadence: When it has a value.
        level: The lowest level at which it is recorded.
        needs: What must be there for it; empty if nothing special.
        source: What provides it.
        expression: For ``MetricSource.RULE``, the expression of the rule language.
        is_vector: Whether it is a vector.
    """

    name: str
    group: str
    formula: str
    unit: str = ""
    cadence: Cadence = Cadence.EMISSION
    level: str = "standard"
    needs: str = ""
    source: MetricSource = MetricSource.PROBE
    expression: str = ""
    is_vector: bool = False

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels at which it is recorded."""
        return LEVELS[LEVELS.index(self.level) :]

    def matches(self, name: str) -> bool:
        """Whether this name is one of the entry's."""
        pieces = re.split(r"\{(\w+)\}", self.name)
        pattern = "".join(_PLACES[piece] if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))
        return re.fullmatch(pattern, name) is not None


_PLACES: Final = {"block": r"\d+", "k": r"\d+", "param": ".+", "site": ".+", "span": r"[^/]+"}

_SCORES: Final = "attention scores that a module shows"
_PROBABILITIES: Final = "attention probabilities that a module shows"
_HOOKS: Final = "blocks that are found by structure or named by `sites`"
_TOKENS: Final = "token ids or labels in the model's arguments"
_BATCH: Final = "`probe_batch`"
_ELEMENTS: Final = "two elements"
_CUDA: Final = "a CUDA device"
_NVML: Final = "nvidia-ml-py and an NVIDIA GPU; of several visible ones, that with the greatest share of used memory"

_EMA: Final = "ema(loss, 99)"


def _given(name: str, group: str, formula: str, cadence: Cadence = Cadence.STEP, needs: str = "") -> CatalogueEntry:
    """Return an entry that the loop records itself."""
    return CatalogueEntry(name, group, formula, cadence=cadence, level="minimal", needs=needs, source=MetricSource.LOOP)


def _derived(name: str, group: str, formula: str, expression: str, cadence: Cadence = Cadence.STEP) -> CatalogueEntry:
    """Return an entry that the rule language computes from other values."""
    return CatalogueEntry(
        name, group, formula, cadence=cadence, level="minimal", source=MetricSource.RULE, expression=expression
    )


def _core(name: str, group: str, formula: str, unit: str = "", needs: str = "") -> CatalogueEntry:
    """Return an entry that probes record at every level."""
    return CatalogueEntry(name, group, formula, unit, level="minimal", needs=needs)


def _timed(name: str, group: str, formula: str, unit: str = "", needs: str = "") -> CatalogueEntry:
    """Return an entry that probes record at every level, at each emission, as a mean or sum since the one before."""
    return CatalogueEntry(name, group, f"{formula}, since the emission before", unit, level="minimal", needs=needs)


def _sampled(name: str, group: str, formula: str, unit: str = "", needs: str = "") -> CatalogueEntry:
    """Return an entry that the sampling process records in ``system`` events."""
    return CatalogueEntry(name, group, formula, unit, Cadence.SAMPLE, "minimal", needs)


#: All metrics. ``|g|`` is the L2 norm; a block's main weights are its attention and MLP matrices.
CATALOGUE: Final = (
    # Loss and evaluation
    _given("loss", "loss", "the loss of the update, as the loop records it"),
    _derived("Loss/train_raw", "loss", "the loss of the update", "loss"),
    _derived("Loss/train", "loss", "ema = 0.98 ema + 0.02 loss, from the first loss on", _EMA),
    _derived(
        "Health/loss_spike_ratio",
        "loss",
        "loss / ema of the updates before",
        "loss / max([ema(loss, 99, skip=1), 1.0e-12])",
    ),
    _derived("Health/non_finite_loss", "loss", "1 if the loss is NaN or infinite", "not isfinite(loss)"),
    _derived("PPL/train", "loss", "exp(ema); infinite from 50 on", f'exp({_EMA}) if {_EMA} < 50 else float("inf")'),
    _given("eval_loss", "evaluation", "the mean loss of an evaluation, as the loop records it", Cadence.EVALUATION),
    _derived("Loss/val", "evaluation", "the mean loss of an evaluation", "eval_loss", Cadence.EVALUATION),
    _derived(
        "PPL/val",
        "evaluation",
        "exp(eval_loss); infinite from 50 on",
        'exp(eval_loss) if eval_loss < 50 else float("inf")',
        Cadence.EVALUATION,
    ),
    _derived(
        "Eval/train_val_gap", "evaluation", "eval_loss - ema of the loss", f"eval_loss - {_EMA}", Cadence.EVALUATION
    ),
    # Learning rate
    CatalogueEntry(
        "LR",
        "learning rate",
        "rate of the first parameter group with which the update trained; also at an update at which it differs by "
        "more than a tenth from that of the update before",
        level="minimal",
        needs="`optimizer`",
    ),
    CatalogueEntry(
        "LR/previous",
        "learning rate",
        "the rate of the update before; at the same updates",
        level="minimal",
        needs="`optimizer`",
    ),
    # Data
    _core("Tokens/seen", "data", "tokens so far, of this process and attempt", "tokens", _TOKENS),
    _core("Tokens/effective_seen", "data", "targets so far that the loss does not ignore", "tokens", _TOKENS),
    _core("Data/tokens_per_update", "data", "tokens of the update", "tokens", _TOKENS),
    _core("Data/effective_tokens_per_update", "data", "targets of the update that are not ignored", "tokens", _TOKENS),
    _core("Data/ignore_frac", "data", "share of the update's targets that the loss ignores (label -100)", "", _TOKENS),
    CatalogueEntry(
        "Data/ignore_frac_val",
        "data",
        "the same over an evaluation",
        cadence=Cadence.EVALUATION,
        level="minimal",
        needs=_TOKENS,
    ),
    # Gradients
    _core("Gradients/norm", "gradients", "|g| over all gradients before clipping"),
    _core("Gradients/norm_used", "gradients", "|g| as the optimizer sees it, after clipping"),
    _core(
        "Gradients/clip_coef",
        "gradients",
        "min(1, clip_norm / (norm + 1e-6)); without `clip_norm`, norm_used / norm over the optimizers' parameters",
    ),
    _core("Gradients/clipped", "gradients", "1 if norm > clip_norm; without `clip_norm`, if clip_coef < 0.9999"),
    _derived(
        "Gradients/clip_rate",
        "gradients",
        "share of the last 10 emissions that were clipped",
        'mean("Gradients/clipped", 10)',
        Cadence.EMISSION,
    ),
    CatalogueEntry("Gradients/block_{block}/norm", "gradients", "|g| over the block's main weights, before clipping"),
    CatalogueEntry(
        "Gradients/depth_ratio_first_last", "gradients", "norm of the first block / (norm of the last + 1e-12)"
    ),
    CatalogueEntry(
        "gradients/{param}/norm", "gradients", "|g| of a sentinel tensor after clipping, in debug of every tensor"
    ),
    CatalogueEntry("gradients/{param}/mean", "gradients", "mean of its elements"),
    CatalogueEntry(
        "gradients/{param}/std", "gradients", "standard deviation of its elements, divisor n", needs=_ELEMENTS
    ),
    CatalogueEntry(
        "gradients/{param}/mean_share",
        "gradients",
        "mean^2 / (mean^2 + std^2): 0 where the mean is 0, 1 where all elements are equal",
        needs=_ELEMENTS,
    ),
    CatalogueEntry(
        "gradients/{param}/outlier_rate_k10", "gradients", "share of its elements above 10 rms", cadence=Cadence.CHECK
    ),
    CatalogueEntry(
        "gradients/{param}/near_zero_rate",
        "gradients",
        "share of its elements at or below rms / 1000",
        cadence=Cadence.CHECK,
    ),
    CatalogueEntry(
        "gradients_hist/{param}",
        "gradients",
        "least, greatest, then counts of 64 equal bins between them",
        cadence=Cadence.CHECK,
        is_vector=True,
    ),
    # Parameters and updates
    CatalogueEntry("Parameters/norm", "parameters", "|w| over all parameters before the update, shared ones once"),
    CatalogueEntry("Weights/block_{block}/norm", "parameters", "|w| over the block's main weights, after the update"),
    CatalogueEntry(
        "weights/{param}/norm", "parameters", "|w| of a sentinel tensor, in debug of every tensor, after the update"
    ),
    CatalogueEntry(
        "weights/{param}/outlier_rate_k10", "parameters", "share of its elements above 10 rms", cadence=Cadence.CHECK
    ),
    CatalogueEntry(
        "weights_hist/{param}",
        "parameters",
        "least, greatest, then counts of 64 equal bins between them",
        cadence=Cadence.CHECK,
        is_vector=True,
    ),
    CatalogueEntry("Updates/ratio_global", "updates", "lr |g| / (|w| + 1e-12) over all parameters, g after clipping"),
    CatalogueEntry(
        "Updates/ratio_p50",
        "updates",
        "median of lr |g| / |w| over the main weights of all blocks, g after clipping: the value at the nearest rank",
    ),
    CatalogueEntry("Updates/ratio_p95", "updates", "95 % quantile of the same"),
    CatalogueEntry("Updates/ratio_max", "updates", "greatest of the same"),
    CatalogueEntry(
        "Updates/block_{block}/ratio", "updates", "lr |g| / |w| over the block's main weights, g after clipping"
    ),
    CatalogueEntry(
        "Updates/depth_ratio_first_last", "updates", "ratio of the first block / (ratio of the last + 1e-12)"
    ),
    CatalogueEntry(
        "updates/{param}/ratio",
        "updates",
        "update_norm / weight_norm of a sentinel tensor; NaN while weight_norm is at most 1e-6",
    ),
    CatalogueEntry("updates/{param}/update_norm", "updates", "lr |g|, g after clipping; in debug |w after - w before|"),
    CatalogueEntry("updates/{param}/weight_norm", "updates", "|w| before the update"),
    CatalogueEntry(
        "Optimizer/opt_state_finite",
        "optimizer",
        "1 if the optimizer's state of the sentinel tensors is finite, in debug of all tensors",
        cadence=Cadence.CHECK,
        needs="`optimizer`",
    ),
    # Inside the model
    CatalogueEntry(
        "Attention/block_{block}/max_attn_logit", "attention", "greatest unmasked score q k / sqrt(d)", needs=_SCORES
    ),
    CatalogueEntry(
        "Attention/block_{block}/attn_entropy",
        "attention",
        "mean over rows of -sum p log p",
        "nats",
        needs=_PROBABILITIES,
    ),
    CatalogueEntry(
        "Attention/block_{block}/attn_entropy_norm",
        "attention",
        "entropy / log(keys); 0 for one key",
        needs=_PROBABILITIES,
    ),
    CatalogueEntry(
        "Attention/block_{block}/frac_logits_gt_tau",
        "attention",
        "share of unmasked scores above 100",
        level="debug",
        needs=_SCORES,
    ),
    CatalogueEntry(
        "Residual/block_{block}/rms", "residual stream", "root mean square of the block's output", needs=_HOOKS
    ),
    CatalogueEntry(
        "Residual/block_{block}/outlier_rate_k10", "residual stream", "share of elements above 10 rms", needs=_HOOKS
    ),
    CatalogueEntry(
        "Activations/{site}/rms", "activations", "root mean square of a normalisation layer's output", needs=_HOOKS
    ),
    CatalogueEntry("Activations/{site}/max_abs", "activations", "greatest absolute element of the same", needs=_HOOKS),
    CatalogueEntry(
        "activations_hist/{site}",
        "activations",
        "least, greatest, then counts of 64 equal bins between them, of the same",
        cadence=Cadence.CHECK,
        needs=_HOOKS,
        is_vector=True,
    ),
    # Probe batch
    CatalogueEntry(
        "Eval/eval_artifact_hash",
        "probe batch",
        "first 48 bits of the SHA-256 of the batch: names, types, shapes and bytes",
        cadence=Cadence.CHECK,
        needs=_BATCH,
    ),
    CatalogueEntry(
        "Probes/fixed_probe_loss", "probe batch", "loss in evaluation mode", cadence=Cadence.CHECK, needs=_BATCH
    ),
    CatalogueEntry(
        "Probes/logit_entropy",
        "probe batch",
        "mean entropy of softmax at the last position",
        "nats",
        Cadence.CHECK,
        needs=_BATCH,
    ),
    CatalogueEntry(
        "Probes/topk_mass_k{k}",
        "probe batch",
        "mean sum of the k greatest probabilities at the last position; k is 10 or the number of classes",
        cadence=Cadence.CHECK,
        needs=_BATCH,
    ),
    CatalogueEntry(
        "Probes/output_kl_to_prev",
        "probe batch",
        "mean KL(p, p of the probe before) at the last position",
        "nats",
        Cadence.CHECK,
        "debug",
        _BATCH,
    ),
    # Time
    _timed("Time/step_seconds", "time", "mean time of an update: waiting and computing", "s"),
    _timed("Time/data_wait_seconds", "time", "mean time an update waits for its batches", "s"),
    _timed("Time/data_wait_frac", "time", "data_wait_seconds / step_seconds"),
    _timed("Time/compute_seconds_est", "time", "step_seconds - data_wait_seconds", "s"),
    _timed("Time/compute_frac_est", "time", "compute_seconds_est / step_seconds"),
    _timed("Throughput/steps_per_second", "time", "updates / time without spans and probes", "1/s"),
    _timed("Throughput/tokens_per_second", "time", "tokens / the same time", "tokens/s", _TOKENS),
    _timed(
        "Throughput/effective_tokens_per_second", "time", "targets not ignored / the same time", "tokens/s", _TOKENS
    ),
    _timed("Throughput/samples_per_second", "time", "samples / the same time", "samples/s"),
    _timed("Perf/achieved_tflops", "time", "effective tokens/s * 6 * parameters / 1e12", "TFLOP/s", _TOKENS),
    _timed("Perf/mfu", "time", "achieved_tflops / peak_tflops", "", "`peak_tflops`"),
    _core("Probes/seconds", "probes", "time that probes took on the training thread, since the emission before", "s"),
    _core("Probes/every", "probes", "the cadence in use, in updates", "updates"),
    _core("Probes/level", "probes", "the level in use: 0 minimal, 1 standard, 2 debug"),
    CatalogueEntry(
        "Time/{span}_seconds", "time", "duration of a span of that name", "s", Cadence.SPAN, "minimal", "`rec.span`"
    ),
    # Checkpoints
    _given(
        "Checkpoint/ok",
        "checkpoint",
        '1 if the span "checkpoint" ended without an exception, else 0',
        Cadence.SPAN,
        '`rec.span("checkpoint")`',
    ),
    _given("Checkpoint/size_mb", "checkpoint", "size of the checkpoint in 10^6 bytes", Cadence.SAVE, "`rec.save`"),
    # Memory and system
    _core("Memory/allocated_mb", "memory", "allocated by tensors, in 2^20 bytes", "MiB", _CUDA),
    _core("Memory/reserved_mb", "memory", "reserved by the allocator", "MiB", _CUDA),
    _core("Memory/max_allocated_mb", "memory", "greatest allocated so far", "MiB", _CUDA),
    _core("Memory/max_reserved_mb", "memory", "greatest reserved so far", "MiB", _CUDA),
    _core("Memory/reserved_frac", "memory", "reserved / the device's memory", "", _CUDA),
    _core("Memory/total_mb", "memory", "the device's memory", "MiB", _CUDA),
    _sampled("GPU/utilization", "gpu", "busy share of the driver's newest interval, a second or less", "%", _NVML),
    _sampled("GPU/memory_used_mb", "gpu", "used by all processes", "MiB", _NVML),
    _sampled("GPU/memory_used_frac", "gpu", "used / total", "", _NVML),
    _sampled("GPU/temperature_c", "gpu", "temperature", "degrees C", _NVML),
    _sampled("GPU/power_w", "gpu", "power draw", "W", _NVML),
    _sampled("System/cpu_frac", "system", "busy share of all cores", ""),
    _sampled("System/process_cpu_cores", "system", "cores that the training process keeps busy", "cores"),
    _sampled("System/rss_mb", "system", "resident memory of the training process", "MiB"),
    _sampled("System/memory_used_frac", "system", "used share of the host's memory", ""),
    _sampled("System/disk_used_frac", "system", "used share of the disk of the store", ""),
    _sampled("System/disk_read_mb_per_s", "system", "read from all disks, in 2^20 bytes", "MiB/s"),
    _sampled("System/disk_write_mb_per_s", "system", "written to all disks", "MiB/s"),
    _sampled("System/net_sent_mb_per_s", "system", "sent over all network devices", "MiB/s"),
    _sampled("System/net_received_mb_per_s", "system", "received over all network devices", "MiB/s"),
)


@functools.lru_cache(maxsize=4096)  # It takes 2 ms, and the metrics of a store are few.
def entry_of(name: str) -> CatalogueEntry | None:
    """Return the entry that a metric's name belongs to; None for a name that the catalogue does not know."""
    return next((entry for entry in CATALOGUE if entry.matches(name)), None)

"""The catalogue of metrics covers nano-train's monitoring, and each entry says what it is."""

from __future__ import annotations

import re

import pytest

from steptape.rules.language.name_patterns import have_common_names
from steptape.rules.metric_catalogue import CATALOGUE, LEVELS, Cadence, MetricSource, entry_of
from steptape.rules.policy_file.policy import load_policy, parse_policy

#: The tags of nano-train's tables A and B, with examples of those that stand for several.
_TAGS = """
Loss/train Loss/train_raw Health/loss_spike_ratio PPL/train Loss/val PPL/val Eval/train_val_gap LR
Health/non_finite_loss Tokens/seen Tokens/effective_seen Data/tokens_per_update Data/effective_tokens_per_update
Data/ignore_frac Data/ignore_frac_val
Gradients/norm Gradients/clip_coef Gradients/clipped Gradients/clip_rate Parameters/norm
Updates/ratio_global Updates/ratio_p50 Updates/ratio_p95 Updates/ratio_max
Gradients/block_0/norm Gradients/block_11/norm Updates/block_0/ratio Gradients/depth_ratio_first_last
Updates/depth_ratio_first_last Optimizer/opt_state_finite
Attention/block_0/max_attn_logit Attention/block_0/attn_entropy Attention/block_0/attn_entropy_norm
Attention/block_0/frac_logits_gt_tau Residual/block_5/rms Residual/block_5/outlier_rate_k10
Activations/block_0/attn_norm/rms Activations/block_0/attn_norm/max_abs Activations/final_norm/rms
Eval/eval_artifact_hash Probes/fixed_probe_loss Probes/logit_entropy Probes/topk_mass_k10 Probes/output_kl_to_prev
gradients/h.0.attn.weight/norm gradients/h.0.attn.weight/mean gradients/h.0.attn.weight/std
updates/h.0.attn.weight/ratio updates/h.0.attn.weight/update_norm updates/h.0.attn.weight/weight_norm
gradients_hist/h.0.attn.weight weights/h.0.attn.weight/norm Weights/block_0/norm weights_hist/h.0.attn.weight
Time/step_seconds Time/data_wait_seconds Time/data_wait_frac Time/compute_seconds_est Time/compute_frac_est
Throughput/steps_per_second Throughput/tokens_per_second Throughput/effective_tokens_per_second
Throughput/samples_per_second Perf/achieved_tflops Perf/mfu GPU/utilization GPU/memory_used_mb GPU/memory_used_frac
Memory/allocated_mb Memory/reserved_mb Memory/max_allocated_mb Memory/max_reserved_mb Memory/reserved_frac
Memory/total_mb Time/checkpoint_seconds Checkpoint/ok Checkpoint/size_mb
"""
TAGS = _TAGS.split()

#: How the tags begin that nano-train emits at its lowest level, too.
AT_MINIMAL = re.compile(
    r"Loss|PPL|Eval/train|LR|Health|Tokens|Data|Gradients/(norm|clip)|Time|Throughput|Perf|GPU|Memory|Checkpoint"
)


@pytest.mark.parametrize("tag", TAGS)
def test_each_tag_of_nano_trains_tables_has_an_entry(tag: str) -> None:
    """The entry has a formula, a group, a cadence, levels and a source."""
    entry = entry_of(tag)

    assert entry is not None
    assert entry.formula
    assert entry.group
    assert isinstance(entry.cadence, Cadence)
    assert entry.levels == LEVELS[LEVELS.index(entry.level) :]
    assert ("minimal" in entry.levels) == (AT_MINIMAL.match(tag) is not None)


def test_no_two_entries_claim_one_name() -> None:
    """A name belongs to one entry: to that of its own name, else to that of one pattern."""
    exact = {entry.name for entry in CATALOGUE if "{" not in entry.name}
    for tag in {*TAGS, *exact}:
        assert (
            len([entry.name for entry in CATALOGUE if entry.matches(tag) and (tag not in exact or entry.name == tag)])
            == 1
        )


@pytest.mark.parametrize(
    "entry", [entry for entry in CATALOGUE if entry.source is MetricSource.RULE], ids=lambda entry: entry.name
)
def test_the_expression_of_an_entry_is_one_of_the_rule_language(entry: object) -> None:
    """It loads as a definition."""
    expression = getattr(entry, "expression")  # noqa: B009 - pytest gives the parameter without its type
    policy = parse_policy(f"define:\n  value: {expression!r}\ncontrollers:\n" + CONTROLLER)

    assert policy.controllers


CONTROLLER = "- {name: any, triggers: [on_step_end], rule: value == 1, operations: []}\n"


def test_the_pack_reads_names_that_the_catalogue_knows() -> None:
    """A series of nano_train that the catalogue lacks would never have a value."""
    text = load_policy("nano_train").text
    names = set(re.findall(r'series\("([^"]+)"', text))
    patterns = [re.sub(r"\{\w+\}", "*", entry.name) for entry in CATALOGUE]

    assert [name for name in names if not any(have_common_names(name, each) for each in patterns)] == []
    assert len(names) > 30

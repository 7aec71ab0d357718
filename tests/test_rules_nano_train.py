"""The pack `nano_train`: each threshold of nano-train's tables, its derived metrics, and its decisions live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from shipped_rules import shipped
from torch import nn

from steptape import Recorder, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.metric_catalogue import CATALOGUE, entry_of
from steptape.rules.policy_file.declarations import Controller
from steptape.rules.policy_file.policy import Policy, parse_policy, shipped_tests
from steptape.rules.scenarios.file import ScenarioTest, load_tests
from steptape.store.events import Event

STOP = "hfcontrols.should_training_stop"


class Row(NamedTuple):
    """A threshold of the tables.

    Attributes:
        metric: The metric, or the pattern of its names.
        threshold: As the tables have it.
        controller: The controller that keeps it.
        severity: Its severity.
        points: The points in a row at which it fires.
        stops: Whether it ends the training.
    """

    metric: str
    threshold: str
    controller: str
    severity: str = "warning"
    points: int = 1
    stops: bool = False


#: Tables A and B in their order, then the two rules beyond them.
ROWS = (
    Row("loss", "flat for long", "loss_flat", points=3),
    Row("loss", "ratio > 3", "loss_spike"),
    Row("loss", "ratio > 10", "loss_explodes", "critical", stops=True),
    Row("loss", "perplexity doubles", "train_ppl_jump"),
    Row("loss", "perplexity not finite", "train_ppl_not_finite", "critical", stops=True),
    Row("loss", "not finite", "loss_not_finite", "critical", stops=True),
    Row("eval_loss", "rises while the training loss falls", "val_rises", points=3),
    Row("eval_loss", "perplexity rises rapidly", "val_ppl_jump"),
    Row("eval_loss", "perplexity not finite", "val_ppl_not_finite", "critical", stops=True),
    Row("eval_loss", "gap widens", "gap_widens", points=3),
    Row("LR", "discontinuity", "lr_discontinuity"),
    Row("LR", "discontinuity upwards", "lr_leap"),
    Row("LR", "discontinuity that stays", "lr_slump", points=3),
    Row("LR", "0", "lr_zero"),
    Row("Tokens/seen", "flat", "tokens_flat"),
    Row("Tokens/effective_seen", "ratio drifts", "effective_share_drifts", points=3),
    Row("Data/tokens_per_update", "drift > 10 %", "update_tokens_drift", points=3),
    Row("Data/tokens_per_update", "slow drift > 10 %", "update_tokens_creep"),
    Row("Data/effective_tokens_per_update", "drop", "effective_tokens_drop", points=3),
    Row("Data/effective_tokens_per_update", "slow drop", "effective_tokens_fade"),
    Row("Data/ignore_frac", "> 0.2", "ignored_high"),
    Row("Data/ignore_frac", "> 0.3", "ignored_bad", "critical"),
    Row("Data/ignore_frac_val", "> 0.2", "ignored_val_high"),
    Row("Data/ignore_frac_val", "> 0.3", "ignored_val_bad", "critical"),
    Row("Gradients/norm", "> 1e2", "norm_high"),
    Row("Gradients/norm", "< 1e-2", "norm_low"),
    Row("Gradients/norm", "> 1e3", "norm_very_high", "critical"),
    Row("Gradients/norm", "not finite", "norm_not_finite", "critical", stops=True),
    Row("grad_norm", "> 1e2", "loop_norm_high"),
    Row("grad_norm", "< 1e-2", "loop_norm_low"),
    Row("grad_norm", "> 1e3", "loop_norm_very_high", "critical"),
    Row("grad_norm", "not finite", "loop_norm_not_finite", "critical", stops=True),
    Row("Gradients/clip_coef", "< 0.5", "clip_strong"),
    Row("Gradients/clip_coef", "< 0.1", "clip_very_strong", "critical", points=3),
    Row("Gradients/clipped", "rate > 0.05", "clip_often", points=3),
    Row("Parameters/norm", "not finite", "parameters_not_finite", "critical", stops=True),
    Row("Updates/ratio_global", "> 1e-1", "updates_large"),
    Row("Updates/ratio_global", "< 1e-7", "updates_small"),
    Row("Updates/ratio_global", "> 3e-1", "updates_very_large", "critical"),
    Row("Updates/ratio_p50", "< 1e-7", "half_of_updates_small"),
    Row("Updates/ratio_p95", "> 1e-1", "largest_updates_large"),
    Row("Updates/ratio_max", "> 3e-1", "largest_update_very_large", "critical"),
    Row("Gradients/block_{block}/norm", "first << others", "block_gradients_vanish", points=3),
    Row("Updates/block_{block}/ratio", "first << others", "block_updates_vanish", points=3),
    Row("Gradients/depth_ratio_first_last", "< 0.05", "gradient_depth_low"),
    Row("Gradients/depth_ratio_first_last", "< 0.01", "gradient_depth_bad", "critical"),
    Row("Updates/depth_ratio_first_last", "< 0.05", "update_depth_low"),
    Row("Updates/depth_ratio_first_last", "< 0.01", "update_depth_bad", "critical"),
    Row("Optimizer/opt_state_finite", "0", "optimizer_not_finite", "critical", stops=True),
    Row("Attention/block_{block}/max_attn_logit", "> 200", "attention_logit_high"),
    Row("Attention/block_{block}/max_attn_logit", "> 1000", "attention_logit_critical", "critical"),
    Row("Attention/block_{block}/attn_entropy", "collapse", "attention_collapses", points=3),
    Row("Attention/block_{block}/attn_entropy_norm", "< 0.1", "attention_entropy_low"),
    Row("Residual/block_{block}/rms", "> 2 x the usual", "residual_grows"),
    Row("Residual/block_{block}/outlier_rate_k10", "> 1e-3", "residual_outliers_high"),
    Row("Residual/block_{block}/outlier_rate_k10", "> 1e-2", "residual_outliers_bad", "critical"),
    Row("Activations/{site}/rms", "< 0.5 or > 2", "activation_rms"),
    Row("Activations/{site}/rms", "< 0.25 or > 4", "activation_rms_bad", "critical"),
    Row("Activations/{site}/max_abs", "> 20", "activation_large"),
    Row("Activations/{site}/max_abs", "> 50", "activation_very_large", "critical"),
    Row("Eval/eval_artifact_hash", "changed", "probe_batch_changed", "critical", stops=True),
    Row("Probes/fixed_probe_loss", "discontinuity", "probe_loss_jumps"),
    Row("Probes/fixed_probe_loss", "discontinuity downwards", "probe_loss_drops"),
    Row("Probes/logit_entropy", "step change", "probe_entropy_changes"),
    Row("Probes/topk_mass_k{k}", "jump", "probe_mass_changes"),
    Row("Probes/output_kl_to_prev", "spike", "probe_outputs_jump"),
    Row("gradients/{param}/norm", "outlier", "tensor_norm_outlier"),
    Row("gradients/{param}/std", "0", "tensor_gradients_vanish"),
    Row("gradients/{param}/mean_share", "mean far from 0", "tensor_gradients_shift"),
    Row("gradients/{param}/outlier_rate_k10", "heavy tails growing", "gradient_tails_grow"),
    Row("gradients/{param}/near_zero_rate", "collapse near 0", "gradients_collapse"),
    Row("weights/{param}/outlier_rate_k10", "heavy tails", "weight_tails_grow"),
    Row("updates/{param}/ratio", "> 0.1", "tensor_updates_large"),
    Row("updates/{param}/ratio", "< 1e-7", "tensor_updates_small"),
    Row("weights/{param}/norm", "sudden jump", "weight_jumps"),
    Row("weights/{param}/norm", "drift", "weights_drift", "info"),
    Row("Weights/block_{block}/norm", "max / min > 1000", "weights_spread"),
    Row("Time/step_seconds", "> 2 x baseline", "steps_slow", points=3),
    Row("Time/step_seconds", "slowly > 2 x the first", "steps_slow_down"),
    Row("Time/data_wait_seconds", "grows", "waits_grow"),
    Row("Time/data_wait_frac", "> 0.3", "waits_long"),
    Row("Time/data_wait_frac", "> 0.5", "waits_very_long", "critical"),
    Row("Time/compute_seconds_est", "sudden increase", "compute_slow", points=3),
    Row("Time/compute_seconds_est", "slow increase", "compute_slows_down"),
    Row("Time/compute_frac_est", "low", "compute_share_low", "info"),
    Row("Throughput/steps_per_second", "drop > 30 %", "steps_per_s_drop", points=3),
    Row("Throughput/tokens_per_second", "drop > 50 %", "tokens_per_s_drop", points=3),
    Row("Throughput/effective_tokens_per_second", "drop > 10 %", "effective_per_s_dip", "info", points=3),
    Row("Throughput/effective_tokens_per_second", "drop > 20 %", "effective_per_s_drop", points=3),
    Row("Throughput/samples_per_second", "drop > 50 %", "samples_per_s_drop", points=3),
    Row("Throughput/samples_per_second", "slow drop", "throughput_fades"),
    Row("Perf/achieved_tflops", "drop", "tflops_drop", points=3),
    Row("Perf/mfu", "drop", "mfu_drop", points=3),
    Row("Perf/mfu", "slow drop", "flops_fade"),
    Row("GPU/utilization", "low while steps are slow", "gpu_idle"),
    Row("GPU/memory_used_mb", "creep", "gpu_memory_creeps"),
    Row("GPU/memory_used_frac", "> 0.9", "gpu_memory_high"),
    Row("GPU/memory_used_frac", "> 0.95", "gpu_memory_very_high", "critical"),
    Row("Memory/allocated_mb", "creep", "allocated_creeps"),
    Row("Memory/reserved_mb", "creep", "reserved_creeps"),
    Row("Memory/max_allocated_mb", "near the total", "max_allocated_near_total"),
    Row("Memory/max_reserved_mb", "near the total", "max_reserved_near_total"),
    Row("Memory/reserved_frac", "> 0.9", "reserved_high"),
    Row("Memory/reserved_frac", "> 0.95", "reserved_very_high", "critical"),
    Row("Time/{span}_seconds", "stalls", "checkpoints_stall", points=3),
    Row("Time/{span}_seconds", "slow stalls", "checkpoints_slow_down"),
    Row("Checkpoint/ok", "0", "checkpoint_failed", "critical", stops=True),
    Row("Checkpoint/size_mb", "sudden jump", "checkpoint_size_jumps"),
    Row("Gradients/norm_used", "is not clip_coef x norm", "clip_without_effect", "critical"),
    Row("eval_loss", "not finite", "eval_loss_not_finite", "critical"),
)


#: Metrics that rules ask for because they hold back where a run records them.
LACKING = {"Gradients/norm", "Gradients/depth_ratio_first_last", "Updates/depth_ratio_first_last", "LR"}


@cache
def controllers() -> dict[str, Controller]:
    """Return the controllers of the pack by name."""
    return {controller.name: controller for controller in shipped("nano_train").controllers}


@cache
def scenarios() -> list[ScenarioTest]:
    """Return the tests of the pack."""
    return load_tests(shipped_tests()["nano_train"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.controller)
def test_a_row_has_the_severity_and_the_persistence_of_its_table(row: Row) -> None:
    """Patience tolerates one point less than it needs, and asks at values of the metric alone."""
    controller = controllers()[row.controller]

    assert controller.severity == row.severity
    assert (0 if controller.patience is None else controller.patience.threshold) == row.points - 1
    assert controller.awaits_value
    assert (STOP in controller.operations) == row.stops
    assert row.metric == "grad_norm" or entry_of(
        row.metric.format(block=0, k=10, site="x", param="x", span="checkpoint")
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.controller)
def test_a_row_has_a_scenario_in_which_it_fires_once_its_limit_is_passed(row: Row) -> None:
    """The scenarios begin at the limit itself, and hold back what persists for too short."""
    expected = [test for test in scenarios() if row.controller in {each.controller for each in test.expected or ()}]

    assert expected


def test_every_controller_is_a_row_or_a_diagnosis() -> None:
    """Nothing in the pack is without a source in the table above."""
    diagnoses = {name for name in controllers() if name.startswith("diagnosis_")}

    assert len(diagnoses) == 7
    assert {row.controller for row in ROWS} == controllers().keys() - diagnoses


def test_every_controller_waits_for_the_metrics_that_it_reads() -> None:
    """A run that lacks a metric gets no warning about it."""
    for controller in shipped("nano_train").controllers:
        read = {key.name for key in controller.rule.bound.series if not key.is_derived}
        required = {key.name for key in controller.requires}

        assert read - required <= LACKING, controller.name


def shown(expressions: Mapping[str, str], events: list[Event]) -> dict[str, list[float]]:
    """Return the value of each expression after each event at which it has one, with the definitions of the pack."""
    document = shipped("nano_train").text.partition("\ncontrollers:\n")[0]
    for number, (name, text) in enumerate(expressions.items()):
        trigger = "on_evaluate" if name in ("PPL/val", "Eval/train_val_gap") else "on_step_end"
        document += ("" if number else "\ncontrollers:\n") + (
            f"  - {{name: show{number}, triggers: [{trigger}], every: value, operations: [], "
            f"rule: 'first([True, {text}])', message: '{{{text}:.17g}}'}}\n"
        )
    engine, names = Engine(parse_policy(document)), list(expressions)
    found: dict[str, list[float]] = {name: [] for name in names}
    for event in events:
        for outcome in engine.observe(event):
            assert isinstance(outcome, Decision)
            found[names[int(outcome.controller.removeprefix("show"))]].append(float(outcome.message))
    return found


DERIVED = {
    "Loss/train": "train_loss",
    "Health/loss_spike_ratio": "spike_ratio",
    "PPL/train": "train_ppl",
    "Gradients/clip_rate": "clip_rate",
    "PPL/val": "val_ppl",
    "Eval/train_val_gap": "gap",
}


@pytest.mark.parametrize("source", ["pack", "catalogue"])
def test_derived_metrics_agree_with_numpy(source: str, tmp_path: Path) -> None:
    """Of one recorded run: averages by 0.98, the ratio to the average before, the cap of perplexity, the clip rate."""
    rng = np.random.default_rng(7)
    losses = np.concatenate([4 * np.exp(-np.arange(300) / 100) + rng.normal(0, 0.1, 300), np.full(120, 90.0)])
    clipped = (rng.random(420) < 0.3).astype(float)
    evaluations = np.array([3.0, 2.5, 49.9, 50.0, 60.0, 1.0])
    with Recorder(tmp_path, quiet=True) as rec:
        for step, loss in enumerate(losses):
            emitted = {"Gradients/clipped": clipped[step]} if step % 7 == 0 else {}
            rec.step({"loss": loss, **emitted})
            if step % 70 == 69:
                rec.evaluate(eval_loss=evaluations[step // 70])
    catalogue = {entry.name: entry.expression for entry in CATALOGUE}
    asked = {name: own if source == "pack" else catalogue[name] for name, own in DERIVED.items()}

    found = shown(asked, list(open_run(rec.folder).events()))

    ema = [losses[0]]
    for loss in losses[1:]:
        ema.append(0.98 * ema[-1] + 0.02 * loss)
    average = np.array(ema)
    capped = np.where(average < 50, np.exp(np.minimum(average, 50)), np.inf)
    at = np.arange(69, 420, 70)
    emitted_flags = clipped[::7]
    rates = [np.mean(emitted_flags[max(0, i - 9) : i + 1]) for i in range(len(emitted_flags))]
    assert found["Loss/train"] == pytest.approx(average, rel=1e-6)
    assert found["Health/loss_spike_ratio"] == pytest.approx(losses[1:] / average[:-1], rel=1e-6)
    assert found["PPL/train"] == pytest.approx(capped, rel=1e-6)
    assert math.inf in found["PPL/train"]
    assert found["Gradients/clip_rate"] == pytest.approx(rates, rel=1e-6)
    assert found["PPL/val"] == pytest.approx([math.exp(x) if x < 50 else math.inf for x in evaluations], rel=1e-6)
    assert found["Eval/train_val_gap"] == pytest.approx(evaluations - average[at], rel=1e-6)


def recorded(folder: Path, every: int, policy: Policy | str = "nano_train", steps: int = 200) -> Recorder:
    """Record a training in which much goes wrong, with the metrics of a watch at a cadence; keep on after a stop."""
    rng = np.random.default_rng(3)
    with Recorder(folder, rules=policy, quiet=True, total_steps=steps) as rec:
        for step in range(1, steps + 1):
            late = step > steps // 2
            loss = 20.0 if step == 150 else 3.0 / math.sqrt(step) + rng.normal(0, 0.01)
            norm = (300.0 if late else 2.0) * rng.uniform(0.9, 1.1)
            emitted = {
                "LR": 1e-3,
                "Gradients/norm": norm,
                "Gradients/norm_used": norm,
                "Gradients/clip_coef": min(1.0, 1 / (norm + 1e-6)),
                "Gradients/clipped": 1.0,
                "Gradients/depth_ratio_first_last": 0.005 if late else 0.5,
                "Updates/ratio_global": rng.uniform(0.0, 0.2),
                "Residual/block_0/rms": 1.0,
                "Residual/block_11/rms": 5.0 if late else 1.0,
                "Attention/block_0/max_attn_logit": 40.0 if late else 5.0,
                "Attention/block_0/attn_entropy": 1.0 if late else 4.0,
                "Residual/block_0/outlier_rate_k10": 0.0,
                "Throughput/steps_per_second": 5.0 if late else 10.0,
            }
            rec.step({"loss": loss, **(emitted if step == 1 or step % every == 0 else {})})
            if step % 40 == 0:
                rec.evaluate(eval_loss=2.0 + step / 100)
    return rec


@pytest.mark.parametrize("every", [1, 7, 10])
def test_live_decisions_of_the_pack_equal_those_of_a_replay(every: int, tmp_path: Path) -> None:
    """Controllers, steps and values, whatever the cadence of the metrics."""
    run = open_run(recorded(tmp_path, every).folder)

    verdict = verify(run)
    fired = {judged.outcome.controller for judged in replay(shipped("nano_train"), run).decisions}
    assert verdict.identical
    assert verdict.outcomes
    assert fired > {"norm_high", "clip_without_effect", "residual_grows", "gradient_depth_bad", "gap_widens"}


@pytest.mark.parametrize(
    ("norm_name", "logs_twice"), [("Gradients/norm", False), ("grad_norm", False), ("grad_norm", True)]
)
def test_an_infinite_norm_that_a_scaler_skips_is_fine(tmp_path: Path, norm_name: str, logs_twice: bool) -> None:
    """One of an update that changed the model ends the training. Hugging Face's Trainer also logs it after the step."""
    skipped, applied = tmp_path / "skipped", tmp_path / "applied"

    for folder, is_applied in ((skipped, False), (applied, True)):
        with Recorder(folder, rules="nano_train", quiet=True) as rec:
            stops = []
            for norm in (math.inf, 1.0, math.inf, 1.0):
                metrics = {"loss": 1.0, norm_name: norm}
                control = rec.step(metrics, applied=is_applied or math.isfinite(norm))
                if logs_twice:
                    control = rec.log({norm_name: norm})
                stops.append(control.should_stop)

        assert stops == [is_applied] * 4


@pytest.mark.parametrize("further", [{}, {"grad_norm": 1.0}], ids=["loss alone", "the norm of the loop"])
def test_a_run_without_probes_hears_of_nothing_that_it_lacks(
    further: dict[str, float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No decision, no error, no warning and no line is about metrics that the run lacks."""
    with Recorder(tmp_path, rules="nano_train", quiet=True) as rec:
        for step in range(1, 301):
            rec.step({"loss": 3.0 / step, **further})

    kinds = {event.kind for event in open_run(rec.folder).events()}
    assert not kinds & {"decision", "rule_error", "rule_warning"}
    assert "no event has carried" not in caplog.text


def trained_layers(folder: Path, late_rate: float) -> tuple[list[float], list[int]]:
    """Train three layers from scratch, from step 200 on at another rate.

    Return the sizes of the last one's outputs, and the steps at which `residual_grows` fires.
    """
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)))
    model = nn.Sequential(nn.Linear(16, 32), layers, nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(1024, 16)
    targets = (inputs @ torch.randn(16, 10)).argmax(1)
    with Recorder(folder, quiet=True) as rec:
        rec.watch(model, optimizer, every=10, budget=None)
        for step in range(1, 401):
            if step == 200:
                optimizer.param_groups[0]["lr"] = late_rate
            rows = torch.randint(1024, (64,))
            loss: Any = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rec.step(loss=loss)
    run = open_run(rec.folder)
    decisions = [each.outcome for each in replay(shipped("nano_train"), run).decisions]
    sizes = run.series("Residual/block_2/rms")["value"].to_pylist()
    return sizes, [one.step for one in decisions if one.controller == "residual_grows"]


def test_a_healthy_training_outgrows_its_first_outputs_without_an_alarm(tmp_path: Path) -> None:
    """nano-train's limit, twice the first value, would be passed."""
    sizes, fired = trained_layers(tmp_path, late_rate=1e-3)

    assert (sizes[-1] > 2 * sizes[5], fired) == (True, [])


def test_outputs_that_blow_up_are_found_at_the_next_points(tmp_path: Path) -> None:
    """The rate leaps to a hundredfold, as by a schedule that is wrong."""
    _, fired = trained_layers(tmp_path, late_rate=0.1)

    assert fired
    assert 200 <= fired[0] <= 220

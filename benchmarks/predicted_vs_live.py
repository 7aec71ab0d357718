"""Checks that real trainings under a policy do what their backtest predicted: small ones, each trained twice.

    .venv/bin/python benchmarks/predicted_vs_live.py [--only NAME]... [--store STORE]

Each is trained without rules, recorded and backtested, and trained again with the policy live. One JSON line each: the
prediction, the outcome, and whether both agree, to the bit, in the last step, in the steps and the weights of the
checkpoints, and in every evaluation. The exit status is 1 if one differs, or if no rule ended it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from small_trainings import TRAININGS, Training, train

from steptape import backtest, open_run, verify
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.run_result import RunResult
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run


def evaluations(run: Run) -> list[tuple[int, dict[str, str]]]:
    """Return step and values of each evaluation, floats as their bits."""
    events = (event for event in run.events() if event.kind == "evaluate")
    return [(event.step, {name: value.hex() for name, value in event.metrics.items()}) for event in events]


def checkpoints(run: Run) -> dict[int, Path]:
    """Return the checkpoints by their step."""
    paths = (run.folder / "checkpoints").iterdir()
    return dict(sorted((int(path.stem.partition("-")[2]), path) for path in paths))


def same_weights(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same tensors, to the bit."""
    first, second = torch.load(one), torch.load(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def saves_of(result: RunResult) -> list[int]:
    """Return the steps at which a policy would have requested checkpoints."""
    decisions = (judged.outcome for judged in result.decisions if isinstance(judged.outcome, Decision))
    return sorted({decision.step for decision in decisions if "hfcontrols.should_save" in decision.operations})


def compare(training: Training, store: Path) -> dict[str, Any]:
    """Train without rules, predict, train with rules; return prediction and outcome."""
    rules = store / f"{training.name}.yaml"
    rules.write_text(training.policy)
    free = open_run(train(training, store / "runs"))
    policy, objective = parse_policy(training.policy), declared_objective(training.metric, None)
    # With live rules the trainings save only what these ask for.
    (result,) = backtest(policy, [free], objective=objective, saves="replace").results
    assert result.predicted is not None, f"{training.name}: its policy may censor nothing"
    steps = result.predicted.steps

    live = open_run(train(training, store / "runs", rules))

    kept, written = checkpoints(free), checkpoints(live)
    values = [event.metrics[training.metric] for event in live.events() if event.kind == "evaluate"]
    finite = [value for value in values if math.isfinite(value)]
    best = {"eval_loss": min, "eval_accuracy": max}[training.metric](finite, default=None)
    final = values[-1] if values else None
    agrees = {
        "stop": (live.info.last.steps, live.status) == (steps, "stopped"),
        "checkpoints": (list(written), len(written)) == (saves_of(result), result.predicted.checkpoints),
        "weights": all(same_weights(path, kept[step]) for step, path in written.items() if step in kept),
        "evaluations": evaluations(live) == [entry for entry in evaluations(free) if entry[0] <= steps],
        "metric": (best, final) == (result.predicted.best, result.predicted.final),
        "verified": verify(live).identical,
    }
    return {
        "training": training.name,
        "agrees": all(agrees.values()),
        "stopped_by": None if result.stop is None else result.stop.outcome.controller,
        "recorded_steps": result.recorded.steps,
        "predicted_steps": steps,
        "live_steps": live.info.last.steps,
        "predicted_checkpoints": saves_of(result),
        "live_checkpoints": list(written),
        "evaluations": len(values),
        "compared_weights": len(written.keys() & kept.keys()),
        "predicted_best": result.predicted.best,
        "live_best": best,
        "best_without_rules": result.recorded.best,
        "differs_in": [part for part, same in agrees.items() if not same],
    }


def main() -> int:
    """Compare, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [training.name for training in TRAININGS]
    parser.add_argument("--only", action="append", choices=names, help="This training only; may be repeated.")
    parser.add_argument("--store", type=Path, help="Where to leave runs and policies; nowhere when not given.")
    arguments = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as scratch:
        store = arguments.store or Path(scratch)
        store.mkdir(parents=True, exist_ok=True)
        for training in TRAININGS:
            if training.name in (arguments.only or names):
                compared = compare(training, store)
                print(json.dumps(compared), flush=True)
                status |= not (compared["agrees"] and compared["stopped_by"])
    return status


if __name__ == "__main__":
    sys.exit(main())

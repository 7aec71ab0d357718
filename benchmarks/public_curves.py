"""Imports public training curves into a store: AlgoPerf's leaderboard logs, Dopamine's baselines, TD-MPC2's results.

Takes a git directory of ``mlcommons/submissions_algorithms``, ``google/dopamine`` or ``nicklashansen/tdmpc2``, with or
without a work tree.

    python benchmarks/public_curves.py algoperf SUBMISSIONS_ALGORITHMS STORE
    python benchmarks/public_curves.py dopamine DOPAMINE STORE
    python benchmarks/public_curves.py tdmpc2 TDMPC2 STORE
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from steptape.importers.run_writing import write_new
from steptape.importers.source import Fact, ImportedRun
from steptape.store.errors import TelemetryError
from steptape.store.run_info import RunInfo

#: A trial of AlgoPerf: submission, study, workload with its framework, trial.
_TRIAL: Final = re.compile(
    r"logs/(\w+_tuning)/([^/]+)/(study_\d+)/([^/]+)_(jax|pytorch)/(trial_\d+)/measurements\.csv$"
)
_CURVES: Final = re.compile(r"baselines/(atari|mujoco)/data/(?!.*\.vg\.json)([^/]+)\.json$")

#: A table of TD-MPC2: algorithm, task.
_TABLE: Final = re.compile(r"results/([^/]+)/([^/]+)\.csv$")

#: The validation losses of AlgoPerf; speech workloads have the second one.
_VALIDATION_LOSSES: Final = ("validation/loss", "validation/ctc_loss")
_RETURN: Final = "eval/return"
_NS_PER_S: Final = 1e9


def algoperf_store(git_dir: Path, store: Path) -> dict[str, list[str]]:
    """Import AlgoPerf's trials that evaluated a validation loss. Return the ids of runs by workload and framework.

    A group of these is called as in ``ogbg_jax``. A run's configuration holds ``workload``, ``framework``,
    ``submission``, ``study``, ``trial`` and the trial's ``hparams``; its own group is the submission on the workload.
    Steps are updates; the clock is the submission's seconds.
    """
    found: dict[str, list[str]] = defaultdict(list)
    matches = {path: match for path in _paths(git_dir) if (match := _TRIAL.search(path)) and "leaderboard" in path}
    settings = {path: path.replace("measurements.csv", "hparams.json") for path in matches}
    texts = _texts(git_dir, [*matches, *settings.values()])
    for number, (path, match) in enumerate(sorted(matches.items())):
        ruleset, submission, study, workload, framework, trial = match.groups()
        hparams = texts.get(settings[path])
        config = {
            "workload": workload,
            "framework": framework,
            "submission": f"{_edition(path)}/{ruleset}/{submission}",
            "study": study,
            "trial": trial,
            "hparams": json.loads(hparams) if hparams else {},
        }
        facts = list(_algoperf_facts(texts[path]))
        run_id, name = f"algoperf-{number:05d}", f"{submission}-{study}-{workload}-{framework}-{trial}"
        if not facts:
            continue
        group = f"{config['submission']} on {workload}"
        if _write(store, run_id, name, facts, config, (_loss_of(facts[0]), "min"), path, group):
            found[f"{workload}_{framework}"].append(run_id)
    return dict(found)


def dopamine_store(git_dir: Path, store: Path) -> dict[str, list[str]]:
    """Import Dopamine's curves. Return the ids of the runs by game.

    A run's configuration holds ``game``, ``network``, ``agent`` and ``seed``: the curves of one agent are told apart by
    their order alone. Steps are iterations of 250,000 agent steps.
    """
    found: dict[str, list[str]] = defaultdict(list)
    paths = {path: match for path in _paths(git_dir) if (match := _CURVES.search(path))}
    texts = _texts(git_dir, list(paths))
    number = 0
    for path, match in sorted(paths.items()):
        family, named = match.groups()
        game, _, network = named.partition("_")
        seeds: dict[str, int] = defaultdict(int)
        for agent, values in _curves(json.loads(texts[path])):
            config = {"game": game, "network": network or family, "agent": agent, "seed": seeds[agent]}
            seeds[agent] += 1
            facts = [Fact("evaluate", step, {_RETURN: value}) for step, value in enumerate(values, start=1)]
            name = f"{named}-{agent}-{config['seed']}"
            if _write(store, f"dopamine-{number:05d}", name, facts, config, (_RETURN, "max"), path):
                found[game].append(f"dopamine-{number:05d}")
            number += 1
    return dict(found)


def tdmpc2_store(git_dir: Path, store: Path) -> dict[str, list[str]]:
    """Import TD-MPC2's curves. Return the ids of the runs by task.

    A run's configuration holds ``task``, ``algorithm`` and ``seed``. Steps are those of the environment, in order.
    """
    found: dict[str, list[str]] = defaultdict(list)
    paths = {path: match for path in _paths(git_dir) if (match := _TABLE.search(path))}
    number = 0
    for path, text in _texts(git_dir, sorted(paths)).items():
        algorithm, task = paths[path].groups()
        by_seed: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for row in csv.DictReader(io.StringIO(text)):
            value = _number(row.get("reward") or row.get("success") or "")
            by_seed[row["seed"]].append((int(float(row["step"])), value))
        for seed, rows in by_seed.items():
            facts = [Fact("evaluate", step, {_RETURN: value}) for step, value in sorted(rows, key=lambda one: one[0])]
            config = {"task": task, "algorithm": algorithm, "seed": seed}
            name, run_id = f"{task}-{algorithm}-{seed}", f"tdmpc2-{number:05d}"
            if _write(store, run_id, name, facts, config, (_RETURN, "max"), path):
                found[task].append(run_id)
            number += 1
    return dict(found)


def _algoperf_facts(text: str) -> Iterator[Fact]:
    """Yield the evaluations of one trial; rows without a finite step are left out."""
    for row in csv.DictReader(io.StringIO(text)):
        numbers = {name: _number(value) for name, value in row.items() if name and value not in (None, "")}
        step = numbers.get("global_step", math.nan)
        metrics = {name: value for name, value in numbers.items() if "/" in name and not name.endswith("num_examples")}
        if math.isfinite(step) and not metrics.keys().isdisjoint(_VALIDATION_LOSSES):
            seconds = numbers.get("accumulated_submission_time", math.nan)
            elapsed = round(seconds * _NS_PER_S) if math.isfinite(seconds) else None
            yield Fact("evaluate", int(step), metrics, elapsed_ns=elapsed)


def _loss_of(fact: Fact) -> str:
    return next(name for name in _VALIDATION_LOSSES if name in fact.metrics)


def _curves(rows: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[float]]]:
    """Yield each curve with its agent: the nth value that an agent has at an iteration is of its nth curve."""
    curves: dict[str, list[list[float]]] = defaultdict(list)
    seen: Counter[tuple[str, int]] = Counter()
    for row in rows:
        place = row["Agent"], int(row["Iteration"])
        if seen[place] == len(curves[row["Agent"]]):
            curves[row["Agent"]].append([])
        curves[row["Agent"]][seen[place]].append(float(row["Value"]))
        seen[place] += 1
    for agent, of_agent in curves.items():
        yield from ((agent, values) for values in of_agent)


def _write(
    store: Path,
    run_id: str,
    name: str,
    facts: list[Fact],
    config: dict[str, Any],
    objective: tuple[str, str],
    path: str,
    group: str | None = None,
) -> bool:
    """Write a run; return whether its source could be read."""
    metric, mode = objective
    source = {"kind": "public_curves", "path": path, "objective": {"metric": metric, "mode": mode}}
    about = RunInfo(run_id, name, attempts=(), config=config, source=source, group=group)
    run = ImportedRun(iter(facts), name=name, config=config, objective=objective, group=group)
    try:
        write_new(store / run_id, about, run, facts)
    except TelemetryError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return False
    return True


def _edition(path: str) -> str:
    return next(part for part in path.split("/") if part.startswith("algoperf_"))


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _paths(git_dir: Path) -> list[str]:
    listed = subprocess.run(
        ("git", "-C", git_dir, "ls-tree", "-r", "-z", "--name-only", "HEAD"), check=True, capture_output=True, text=True
    )
    return listed.stdout.split("\0")


def _texts(git_dir: Path, paths: list[str]) -> dict[str, str]:
    """Return the content of files by path, without those that the snapshot lacks."""
    asked = "".join(f"HEAD:{path}\n" for path in paths).encode()
    content = subprocess.run(
        ("git", "-C", git_dir, "cat-file", "--batch"), check=True, capture_output=True, input=asked
    ).stdout
    texts, start = {}, 0
    for path in paths:
        end = content.index(b"\n", start)
        *_, state = content[start:end].split(b" ")
        start = end + 1
        if state.isdigit():
            texts[path] = content[start : start + int(state)].decode()
            start += int(state) + 1
    return texts


if __name__ == "__main__":
    kind, source_dir, into = sys.argv[1:]
    groups = {"algoperf": algoperf_store, "dopamine": dopamine_store, "tdmpc2": tdmpc2_store}[kind](
        Path(source_dir), Path(into)
    )
    for group, ids in sorted(groups.items()):
        print(f"{group:32} {len(ids):5} runs")

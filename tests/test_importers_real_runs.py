"""Real logs imported by ``auto`` match the claims of their folder's README and the values of plain readers."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_logs import FOLDER

from steptape import backtest, load_policy, open_run, open_store
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.run import Run

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real logs in {FOLDER}")

#: The heading of a kind in the README, and the number of cells in a run's line.
KIND = re.compile(r"## (\w+)")
CELLS = 13


@dataclass(frozen=True)
class Claim:
    """The README's claims about a log."""

    kind: str
    name: str
    points: str
    steps: str
    metrics: str
    eval_metric: str
    eval_points: str
    minimum: str
    final: str
    happens: str


def claims() -> list[Claim]:
    """Return the README's lines; an empty list without logs."""
    found, kind = [], ""
    readme = FOLDER / "README.md"
    for line in readme.read_text().splitlines() if readme.is_file() else []:
        if heading := KIND.match(line):
            kind = heading[1]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == CELLS and cells[0] not in ("name", "---"):
            found.append(Claim(kind, cells[0], *cells[5:]))
    return found


CLAIMS = claims()

#: Columns of W&B's charts that no importer reads: the smallest and greatest value of a line beside it.
BANDS = {"trackio-logs.csv": 2}


#: Logs with a value that counts the steps, and these. The README has it among the metrics, and W&B's count of calls.
COUNTED = {"wandb/stanford_alpaca": ("train/global_step", "1..39")}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The outcomes of importing the whole folder."""
    return list(import_folder(tmp_path_factory.mktemp("real") / "runs"))


def import_folder(store: Path) -> Iterator[Outcome]:
    """Import the whole folder."""
    return import_sources(store, find_sources([FOLDER], all_readers()).sources, ReadOptions())


@pytest.fixture(scope="module")
def runs(imported: list[Outcome], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The imported runs of files with one run each, by the log's folder."""
    store = next(tmp_path_factory.getbasetemp().glob("real*/runs"))
    return {
        str(outcome.path.relative_to(FOLDER)): open_run(store / outcome.run_id)
        for outcome in imported
        if outcome.kind != "optuna"
    }


def run_of(claim: Claim, runs: dict[str, Run]) -> Run:
    """Return the one run of a line of the README."""
    folder = f"{claim.kind}/{claim.name}"
    (run,) = (run for path, run in runs.items() if f"{path}/".startswith(f"{folder}/"))
    return run


def series_of(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of each metric. A trainer's row gives two events; only the log counts."""
    is_trainer = run.info.source is not None and run.info.source["kind"] == "trainer_state"
    found: dict[str, list[tuple[int, float]]] = {}
    for event in run.events(attempts="all"):
        if not (is_trainer and event.kind == "step_end"):
            for name, value in event.metrics.items():
                found.setdefault(name, []).append((event.step, value))
    return found


@pytest.mark.only_one
def test_every_log_of_the_folder_is_imported(imported: list[Outcome]) -> None:
    """There are 79 files; a study's trials are separate runs. Two W&B runs end within a record and are reported."""
    assert {outcome.state for outcome in imported} == {State.NEW}
    assert len({outcome.path for outcome in imported}) == len(CLAIMS) == 79
    assert [outcome.path.parent.name for outcome in imported if outcome.problem] == [
        "beta-tcvae-n748obmj",
        "beta-tcvae-ufljc7ut",
    ]


def test_importing_again_changes_not_one_file(imported: list[Outcome], runs: dict[str, Run]) -> None:
    """Names, sizes and mtimes of all files in the store stay."""
    store = next(iter(runs.values())).folder.parent
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}

    again = list(import_folder(store))

    assert {outcome.state for outcome in again} == {State.UNCHANGED}
    assert [outcome.problem for outcome in again] == [outcome.problem for outcome in imported]
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.points != "-"], ids=lambda c: f"{c.kind}/{c.name}")
def test_a_log_has_the_points_steps_metrics_and_minima_of_the_readme(claim: Claim, runs: dict[str, Run]) -> None:
    """Every number and name of a line is checked."""
    series = series_of(run_of(claim, runs))
    steps = [step for values in series.values() for step, _ in values]

    assert str(max(len(values) for values in series.values())) == claim.points
    counter, counted = COUNTED.get(f"{claim.kind}/{claim.name}", ("", claim.steps))
    assert f"{min(steps)}..{max(steps)}" == counted
    check_metrics(claim, {*series, *filter(None, [counter])})
    if claim.eval_metric != "-":
        values = series[claim.eval_metric]
        step, lowest = min(((s, v) for s, v in values if not math.isnan(v)), key=lambda entry: entry[1])
        assert str(len(values)) == claim.eval_points
        assert f"{lowest:.4g} @ {step}" == claim.minimum
        assert f"{values[-1][1]:.4g}" == claim.final
    check_not_finite(claim, series)


def check_metrics(claim: Claim, names: set[str]) -> None:
    """Compare the metrics: the README shows the first names, cut to forty characters, and the number of the rest."""
    shown, _, more = claim.metrics.partition(" (+")
    listed = shown.split(", ")

    assert len(names) == len(listed) + int(more.rstrip(")") or 0) - BANDS.get(claim.name, 0)
    assert {name[:40] for name in names} >= set(listed)


def check_not_finite(claim: Claim, series: dict[str, list[tuple[int, float]]]) -> None:
    """Compare the number of non-finite values, their metrics, and the first step with one."""
    broken = [(step, name) for name, values in series.items() for step, v in values if not math.isfinite(v)]
    told = re.search(r"(\d+) non-finite values in (.+), first at step (\d+)", claim.happens)
    if told is None:
        assert not [name for _, name in broken if "loss" in name]
    else:
        names = set(told[2].split(", "))
        counted = [entry for entry in broken if entry[1] in names]
        assert (len(counted), min(counted)[0]) == (int(told[1]), int(told[3]))


def plain_values(path: Path) -> dict[str, list[tuple[int, str]]]:
    """Return steps and bits of each metric of a log, read by a plain parser."""
    found: dict[str, list[tuple[int, str]]] = {}
    for step, name, value in PLAIN[path.suffix](path):
        found.setdefault(name, []).append((step, value.hex()))
    return {name: values for name, values in found.items() if name.removesuffix("__MIN").removesuffix("__MAX") == name}


def plain_trainer_state(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield every number of the log history."""
    for row in json.loads(path.read_text())["log_history"]:
        for name, value in row.items():
            if name not in ("step", "epoch") and isinstance(value, (int, float)):
                yield row["step"], name, float(value)


def plain_table(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield every cell that is not empty."""
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            step = next(name for name in ("global_step", "step", "Step") if name in row)
            for name, cell in row.items():
                if name != step and cell:
                    yield int(float(row[step])), name, float(cell)


def plain_text(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield the losses, rates and norms of lines that begin with a step."""
    names = {"tel": "val_loss", "trl": "train_loss"}
    for line in path.read_text().splitlines():
        if match := re.match(r"(?:s|step):(\d+)", line):
            for name, value in re.findall(r"(tel|trl|lr|norm|val_loss):(\S+)", line):
                yield int(match[1]), names.get(name, name), float(value)


PLAIN = {".json": plain_trainer_state, ".csv": plain_table, ".log": plain_text, ".txt": plain_text}


@pytest.mark.parametrize(
    "path",
    [
        p
        for p in sorted(FOLDER.rglob("*"))
        if p.is_file() and p.suffix in PLAIN and p.name not in ("hparams.json", "meta_data_0.json")
    ],
    ids=lambda path: str(path.relative_to(FOLDER)),
)
def test_every_value_of_a_log_is_imported_to_the_bit(path: Path, runs: dict[str, Run]) -> None:
    """No other value is imported, and the log's order is kept."""
    place = path.parent if path.name == "trainer_state.json" else path
    series = series_of(runs[str(place.relative_to(FOLDER))])

    assert {name: [(step, value.hex()) for step, value in values] for name, values in series.items()} == plain_values(
        path
    )


def test_the_page_s_example_of_real_history_is_what_its_commands_print(tmp_path: Path) -> None:
    """Each line of the example appears in order; the commands print more."""
    page = Path(__file__).resolve().parents[1].joinpath("docs", "how-to", "import.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)
    script = example.replace("$STEPTAPE_REAL_RUNS", str(FOLDER)).replace("steptape ", f"{sys.executable} -m steptape ")
    commands = [line[2:].replace("python -c", f"{sys.executable} -c") for line in script.splitlines() if line[0] == "$"]
    shown = [line for line in example.splitlines() if line[0] != "$"]
    environment = {**os.environ, "STEPTAPE_CACHE": str(tmp_path / "cache"), "STEPTAPE_REAL_RUNS": str(FOLDER)}

    printed = [
        subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
        for command in commands
    ]

    lines = [line for result in printed for line in result.stdout.splitlines()]
    assert [line for line in lines if line in shown] == shown


def test_runs_of_all_kinds_in_one_backtest_are_each_judged_by_their_own_validation_loss(runs: dict[str, Run]) -> None:
    """AlgoPerf evaluates training, validation and test data at once; nobody means the test data."""
    report = backtest(parse_policy("controllers: []"), runs.values())
    by_id = {result.run_id: result.objective and result.objective.metric for result in report.results}
    judged = {path: by_id[run.run_id] for path, run in runs.items()}

    assert {metric for path, metric in judged.items() if path.startswith("algoperf_csv/")} == {"validation/loss"}
    assert {metric for path, metric in judged.items() if path.startswith("lightning_csv/")} == {"val_loss", None}
    assert set(judged.values()) >= {"eval_loss", "eval/loss", "valid_loss_epoch"}
    assert all(result.objective and result.objective.mode == "min" for result in report.results if result.evaluations)


def test_a_backtest_over_logs_of_all_kinds_says_what_its_numbers_are_over(runs: dict[str, Run]) -> None:
    """A trainer's state in a checkpoint was interrupted by nobody, and a tracker's steps are no updates."""
    store = open_store(next(iter(runs.values())).folder.parent)
    report = backtest(load_policy(shipped_policies()["overfitting"]), store)
    total = report_json(summarize(report))["aggregate"]
    (lacked, *_) = report.lacking

    assert (report_json(summarize(report))["human"], total["steps"]) == (None, None)
    assert sum("before its plan" in result.right_censored for result in report.results) == 4
    assert [one["unit"] for one in total["steps_by_unit"]] == ["updates", "tensorboard steps", "wandb steps"]
    assert (total["runs"], total["could_fire"], total["families"]["keys"]) == (
        98,
        32,
        {"configuration": 8, "source folder": 3},
    )
    assert (lacked.name, lacked.runs, lacked.nearest["validation/loss"]) == ("eval_loss", 94, 26)


def test_a_study_s_trials_are_runs(imported: list[Outcome], runs: dict[str, Run]) -> None:
    """SQL returns their intermediate values and states."""
    (path,) = {outcome.path for outcome in imported if outcome.kind == "optuna"}
    trials = [outcome for outcome in imported if outcome.kind == "optuna"]
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        states = [state for (state,) in connection.execute("SELECT state FROM trials ORDER BY number")]
        values = connection.execute(
            "SELECT number, step, intermediate_value FROM trial_intermediate_values JOIN trials USING (trial_id)"
        ).fetchall()
    found = []
    for outcome in trials:
        run = open_run(next(iter(runs.values())).folder.parent / outcome.run_id)
        index = int(run.info.name.rpartition("-")[2])
        found += [
            (index, event.step, event.metrics["intermediate_value"])
            for event in run.events()
            if event.kind == "evaluate"
        ]
        assert run.status == {"COMPLETE": "completed", "PRUNED": "stopped"}[states[index]]

    assert len(trials) == len(states) == 20
    assert sorted(found) == sorted(values)
    assert f"{len(values)} intermediate values" in next(c.happens for c in CLAIMS if c.kind == "optuna_db")

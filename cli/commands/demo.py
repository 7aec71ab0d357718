"""``steptape demo``: trains without rules, backtests rule files on that run, trains again under them, and compares.

Every number that it prints is read back from the store.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

import typer

from ...examples.settings import Settings
from ...replay.backtests.backtesting import backtest
from ...replay.reports.result import BacktestResult
from ...replay.reports.summary import summarize
from ...replay.reports.terminal import whole_report
from ...replay.runs.objective import Saves
from ...replay.runs.verification import verify
from ...rules.policy_file.policy import Policy, load_policy, shipped_policies
from ...store.errors import TelemetryError
from ...store.run import Run
from ...store.store import open_run
from ...store.user_cache import require_writable
from ..lookup import store_named
from ..options import DemoArguments
from ..output import print_blocks, print_rows, print_table, progress, say
from ..streams import FINDINGS

#: The policy of the trainer controller's paper (Fig. 4), and one of steptape's.
POLICIES: Final = ("trac_fig4", "overfitting")

#: Number of samples to list, those with the highest losses.
LISTED: Final = 20

_WORST = f"""
SELECT sample_id, avg(loss) AS mean_loss, max(loss) AS max_loss, count(*) AS seen
FROM samples GROUP BY sample_id ORDER BY mean_loss DESC LIMIT {LISTED}
"""


class Example(Protocol):
    """A module of ``examples`` with a training that the demo can run."""

    MISLABELLED: int
    NAME: str
    load_data: Callable[[], Any]
    train: Callable[..., Path]


def demo(asked: DemoArguments) -> None:
    """Train a small model, backtest two rule files on it, train under them, and compare."""
    try:
        example = import_module("...examples.digits" if asked.with_torch else "...examples.clusters", __package__)
    except ImportError as error:
        raise TelemetryError(
            f"this demo needs {error.name}", fix="pip install 'steptape[demo]', or leave out --torch"
        ) from None
    store = store_named(asked.store)
    require_writable(store)
    if not run_demo(store, cast("Example", example)):
        raise typer.Exit(FINDINGS)


def run_demo(store: Path, example: Example) -> bool:
    """Run the demo and leave its runs in the store.

    Args:
        store: Folder of runs.
        example: The training to run.

    Returns:
        Whether every live run stopped at the step that its backtest predicted, wrote as many checkpoints as predicted,
        and verified.
    """
    settings = Settings()
    say("1. Training without rules: an evaluation and a checkpoint every 10 steps, every sample's loss recorded.")
    baseline = open_run(_train(store, example, settings, f"{example.NAME} uncontrolled"))
    steps = baseline.info.last.steps
    say(f"   {steps} steps, {len(list((baseline.folder / 'checkpoints').iterdir()))} checkpoints in {baseline.folder}")

    say("\n2. Backtests: what two rule files would have done to that run, if only they ordered checkpoints.")
    results: dict[str, BacktestResult] = {}
    for name in POLICIES:
        say(f"\n   {name}:\n")
        results[name] = _backtest(load_policy(shipped_policies()[name]), baseline)

    say("\n3. Training again with the same seed and live rules. Only the rules now order checkpoints.")
    unsaved = Settings(save_every=0)
    live = {
        name: open_run(_train(store, example, unsaved, f"{example.NAME} under {name}", shipped_policies()[name]))
        for name in POLICIES
    }

    say("\n4. The backtests' predictions and the live runs:\n")
    agreed = _compare(results, live)

    planted = f"{example.MISLABELLED} labels are wrong on purpose"
    say(f"\n5. The {LISTED} samples with the highest mean loss ({planted}):\n")
    _list_worst(baseline, {str(index) for index in example.load_data().mislabelled})

    run = live[POLICIES[0]]
    say("\n6. Commands to try next:\n")
    for arguments in (
        f"runs --store {store}",
        f"show {run.run_id} --store {store}",
        f'query "SELECT step, controller, loss FROM decisions JOIN steps USING (run_id, step)" --store {store}',
        f"backtest {POLICIES[1]} --store {store} --saves replace",
        f"verify --store {store}",
        f"serve {store}",
    ):
        say(f"   {_command()} {arguments}")
    return agreed


def _command() -> str:
    """Return the command that runs steptape from the user's current folder."""
    beside = Path(sys.executable).with_name("steptape")
    if shutil.which("steptape") or not beside.exists():
        return "steptape"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


def _train(store: Path, example: Example, settings: Settings, name: str, rules: Path | None = None) -> Path:
    with progress(name, settings.steps) as show:
        return example.train(store, settings, name=name, rules=rules, on_step=show)


def _backtest(policy: Policy, run: Run) -> BacktestResult:
    report = summarize(backtest(policy, [run], saves=Saves.REPLACE))
    print_blocks(whole_report(report))
    return report


def _compare(results: Mapping[str, BacktestResult], live: Mapping[str, Run]) -> bool:
    rows: list[tuple[object, ...]] = []
    agreed = True
    for name, report in results.items():
        (result,) = report.backtest.results
        run, predicted = live[name], result.predicted
        verdict = verify(run)
        checkpoints = run.rows("SELECT count(*) AS count FROM saves")[0]["count"]
        is_as_predicted = (
            predicted is not None
            and (run.info.last.steps, checkpoints) == (predicted.steps, predicted.checkpoints)
            and run.status == ("completed" if result.stop is None else "stopped")
        )
        agreed &= is_as_predicted and verdict.identical
        rows.append(
            (
                name,
                predicted.steps if predicted else None,
                run.info.last.steps,
                predicted.checkpoints if predicted else None,
                checkpoints,
                "yes" if is_as_predicted else "NO",
                f"identical, {verdict.outcomes} decisions" if verdict.identical else "DIFFERS",
            )
        )
    print_table(
        ("policy", "stop predicted", "stopped at", "checkpoints predicted", "written", "as predicted", "replay"),
        rows,
        numeric=("stop predicted", "stopped at", "checkpoints predicted", "written"),
    )
    return agreed


def _list_worst(run: Run, wrong: set[str]) -> None:
    rows = [{**row, "mislabelled": "yes" if row["sample_id"] in wrong else ""} for row in run.rows(_WORST)]
    print_rows(rows, ("sample_id", "mean_loss", "max_loss", "seen", "mislabelled"))
    found = sum(bool(row["mislabelled"]) for row in rows)
    say(f"\n   {found} of the {len(wrong)} mislabelled samples are among them.")

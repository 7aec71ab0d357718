"""XGBoost and LightGBM, by the lines of their page: what it records, and that a rule stops both at the right round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost", reason="xgboost is not installed; 'make frameworks' runs this")
pytest.importorskip("lightgbm", reason="lightgbm is not installed; 'make frameworks' runs this")

import lightgbm
import numpy as np
import xgboost
from documents import run_page

from steptape import Recorder, open_store, verify
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "boosting.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's code ran, once."""
    folder = tmp_path_factory.mktemp("page")
    assert run_page(PAGE, folder) == []
    return folder


def evaluations(run: Run, metric: str) -> list[float]:
    """Return a metric of every evaluation."""
    return [event.metrics[metric] for event in run.events() if event.kind == "evaluate"]


@pytest.mark.parametrize(("name", "metric"), [("xgboost", "eval_rmse"), ("lightgbm", "eval_l2")])
def test_the_page_stops_at_the_round_of_the_fifth_evaluation_without_an_improvement(
    page: Path, name: str, metric: str
) -> None:
    """Each round is an update, and the best one is saved."""
    (run,) = [run for run in open_store(page / "runs") if run.info.name == name]
    values = evaluations(run, metric)
    best = int(np.argmin(values))

    assert run.status == "stopped"
    assert len(values) == run.info.last.steps == best + 1 + 5 < 200
    assert [event.step for event in run.events() if event.kind == "save"][-1] == best + 1
    assert verify(run).identical


def test_the_saved_models_are_those_of_the_best_rounds(page: Path) -> None:
    """The libraries load them."""
    runs = {run.info.name: run for run in open_store(page / "runs")}
    best = xgboost.Booster(model_file=str(page / "best.json"))
    other = lightgbm.Booster(model_file=str(page / "best.txt"))

    assert best.num_boosted_rounds() == int(np.argmin(evaluations(runs["xgboost"], "eval_rmse"))) + 1
    assert other.num_trees() == int(np.argmin(evaluations(runs["lightgbm"], "eval_l2"))) + 1


def test_rules_change_the_learning_rate_between_rounds_as_the_page_says(tmp_path: Path) -> None:
    """The trees are those of a training that sets the rates by hand."""
    x = np.random.default_rng(0).normal(size=(300, 4))
    y = x.sum(1)
    params = {"max_depth": 3, "eta": 0.3}
    expected = [0.3, 0.3, 0.3, 0.15, 0.15, 0.15]

    def trained(rates: Any, *more: Any) -> Any:
        scheduler = xgboost.callback.LearningRateScheduler(rates)
        return xgboost.train(params, xgboost.DMatrix(x, y), 6, callbacks=[scheduler, *more])

    class Recording(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            return rec.step(loss=1.0).should_stop

    with Recorder(tmp_path / "runs", rules=["lr.scale(0.5) if step == 3 once"]) as rec:
        rate = rec.learning_rate()
        steered = trained(lambda _: rate(0.3), Recording())

    assert steered.get_dump() == trained(lambda number: expected[number]).get_dump()

"""XGBoost and LightGBM, by the lines of their page: what it records, and that a rule stops both at the right round."""

from __future__ import annotations

from collections.abc import Callable
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


X = np.random.default_rng(0).normal(size=(300, 4))
Y = X.sum(1)


def boosted(
    library: str, rates: Callable[[int], float], after: Callable[[], object], rounds: int = 6, **more: Any
) -> str:
    """Train with these rates, call a function after each round, and return the trees."""
    if library == "lightgbm":
        params = {"objective": "regression", "verbose": -1}
        callbacks = [lightgbm.reset_parameter(learning_rate=rates), lambda _: after() and None]
        trained = lightgbm.train(params, lightgbm.Dataset(X, Y), rounds, callbacks=callbacks, **more)
        return str(trained.model_to_string()).partition("parameters:")[0]

    class Calling(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            after()
            return False

    callbacks = [xgboost.callback.LearningRateScheduler(rates), Calling()]
    return str(xgboost.train({"max_depth": 3}, xgboost.DMatrix(X, Y), rounds, callbacks=callbacks, **more).get_dump())


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_rules_change_the_learning_rate_between_rounds_as_the_page_says(tmp_path: Path, library: str) -> None:
    """The trees are those of a training that sets the rates by hand."""
    by_hand = boosted(library, lambda number: 0.3 if number < 3 else 0.15, lambda: None)
    with Recorder(tmp_path / "runs", rules=["lr.scale(0.5) if step == 3 once"]) as rec:
        rate = rec.learning_rate()
        steered = boosted(library, lambda _: rate(0.3), lambda: rec.step(loss=1.0))

    assert steered == by_hand
    (run,) = open_store(tmp_path / "runs")
    rates = [event.metrics["lr.used"] for event in run.events() if event.kind == "step_end"]
    assert rates == [0.3] * 3 + [0.15] * 3


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_saved_model_and_the_state_beside_it_continue_the_run(tmp_path: Path, library: str) -> None:
    """Its rounds are counted on."""
    saved = tmp_path / "model"
    if library == "lightgbm":
        model = lightgbm.train({"verbose": -1}, lightgbm.Dataset(X, Y), 3)
        more = {"init_model": str(saved)}
    else:
        model = xgboost.train({}, xgboost.DMatrix(X, Y), 3)
        saved = saved.with_suffix(".json")
        more = {"xgb_model": str(saved)}
    with Recorder(tmp_path / "runs") as rec:
        for _ in range(3):
            rec.step(loss=1.0)
        model.save_model(str(saved))
        state = rec.state_dict()
    with Recorder(tmp_path / "runs", resume=state) as rec:
        boosted(library, lambda _: 0.3, lambda: rec.step(loss=1.0), 2, **more)

    (run,) = open_store(tmp_path / "runs")
    assert ([attempt.from_step for attempt in run.info.attempts], run.info.last.steps) == ([None, 3], 5)

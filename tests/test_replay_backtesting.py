"""A backtest's numbers equal those of hand-made runs and of a plain recomputation; every omission is reported."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import Policy, TelemetryError, backtest, open_run, open_store
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import table_rows
from steptape.replay.runs.objective import Saves, declared_objective
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run

STOP_ABOVE_2 = """
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
"""
SECOND_NS = 1_000_000_000


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first loss above 2."""
    return parse_policy(STOP_ABOVE_2)


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Callable[..., Run]:
    """A function that makes sealed runs: a step each second, evaluations and checkpoints after the given steps."""

    def make(
        losses: list[float],
        *,
        evals: dict[int, float] | None = None,
        saves: dict[int, int | None] | None = None,
        run_id: str = "run-1",
        **info: Any,
    ) -> Run:
        events = []
        for step, loss in enumerate(losses, start=1):
            at: dict[str, Any] = {"step": step, "elapsed_ns": step * SECOND_NS, "time_ns": step * SECOND_NS}
            events.append(Event("step_end", metrics={"loss": loss}, **at))
            if step in (evals or {}):
                events.append(Event("evaluate", metrics={"eval_loss": (evals or {})[step]}, **at))
            if step in (saves or {}):
                events.append(Event("save", attrs={"path": f"{step}.pt", "size_bytes": (saves or {})[step]}, **at))
        return open_run(store_record(events, run_id=run_id, sealed=True, **info))

    return make


def one(report: Backtest) -> Any:
    """Return the JSON of a report's only run."""
    (run,) = report_json(summarize(report))["runs"]
    return run


def test_a_stop_saves_what_came_after_it(policy: Policy, record: Callable[..., Run]) -> None:
    """It saves the recorded steps, seconds, checkpoints and bytes after it; best and final compare with the stop's."""
    run = record(
        [1, 1, 3, 1, 1, 1],
        evals={1: 0.9, 2: 0.5, 4: 0.4, 6: 0.7},
        saves={2: 100, 4: 100, 6: 50},
        plan=Plan(total_steps=6),
    )

    result = one(backtest(policy, [run]))

    assert result["stop"]["step"] == 3
    assert result["saved"] == {"steps": 3, "seconds": 3.0, "checkpoints": 2, "checkpoint_bytes": 150, "evaluations": 2}
    assert (result["recorded"]["best"], result["recorded"]["best_step"], result["recorded"]["final"]) == (0.4, 4, 0.7)
    assert (result["predicted"]["best"], result["predicted"]["best_step"], result["predicted"]["final"]) == (
        0.5,
        2,
        0.5,
    )
    assert result["regret"]["absolute"] == pytest.approx(0.1)
    assert result["regret"]["relative"] == pytest.approx(0.25)
    assert [decision["validity"] for decision in result["decisions"]] == ["prefix-exact"]
    assert result["notes"] == []


def test_a_policy_that_never_fires_saves_nothing(policy: Policy, record: Callable[..., Run]) -> None:
    """The predicted run equals the recorded run."""
    result = one(backtest(policy, [record([1, 1], evals={2: 0.5}, saves={1: 10})]))

    assert (result["fired"], result["stop"]) == (False, None)
    assert result["predicted"] == result["recorded"]


@pytest.mark.parametrize(
    ("handling", "checkpoints", "size_bytes"), [(Saves.KEEP, 4, 410 + 137), (Saves.REPLACE, 2, 2 * 137)]
)
def test_checkpoints_that_rules_ask_for_are_added_to_the_run_s_own_or_replace_them(
    record: Callable[..., Run], handling: Saves, checkpoints: int, size_bytes: int
) -> None:
    """None is added where the run saved; each is assumed to have the average size of the run's checkpoints."""
    policy = parse_policy("""
controllers:
  - {name: keep, triggers: [on_evaluate], rule: eval_loss < 0.6, operations: [hfcontrols.should_save]}
""")
    run = record([1] * 4, evals={1: 0.9, 2: 0.5, 3: 0.55, 4: 0.9}, saves={1: 130, 2: 140, 4: 140})

    report = backtest(policy, [run], saves=handling.value)
    result = one(report)

    assert (result["recorded"]["checkpoints"], result["predicted"]["checkpoints"]) == (3, checkpoints)
    assert result["predicted"]["checkpoint_bytes"] == size_bytes
    assert report_json(summarize(report))["saves"] == handling


def test_after_a_diverting_decision_no_number_is_given(record: Callable[..., Run]) -> None:
    """An unknown number is None with a sentence, never a point value."""
    policy = parse_policy("""
controllers:
  - {name: skip, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_epoch_stop]}
""")

    report = backtest(policy, [record([1, 3, 1], evals={1: 0.5})])
    result = one(report)

    assert result["predicted"] is None
    assert set(result["saved"].values()) == {None}
    assert "does not show" in result["notes"][0]
    assert report_json(summarize(report))["aggregate"]["not_known"] == 1
    assert table_rows(summarize(report))[0][1] == "unknown"


def test_regret_is_absolute_only_where_the_best_is_near_zero(policy: Policy, record: Callable[..., Run]) -> None:
    """Nothing is divided by zero."""
    result = one(backtest(policy, [record([1, 3, 1], evals={1: 0.5, 3: 0.0})]))

    assert result["regret"] == {"absolute": 0.5, "relative": None}


def test_nan_evaluations_are_never_the_best(policy: Policy, record: Callable[..., Run]) -> None:
    """A diverged evaluation is not progress."""
    result = one(backtest(policy, [record([1, 1], evals={1: math.nan, 2: 0.5})]))

    assert (result["recorded"]["best"], result["recorded"]["best_step"]) == (0.5, 2)


def test_a_run_that_ended_before_its_plan_is_said_to_bound_the_savings(
    policy: Policy, record: Callable[..., Run]
) -> None:
    """Its remaining steps are unknown."""
    result = one(backtest(policy, [record([1, 3, 1], plan=Plan(total_steps=100), status="failed")]))

    assert "failed at step 3 of 100" in result["notes"][0]


def test_runs_that_cannot_be_judged_are_excluded_with_the_reason(
    policy: Policy, record: Callable[..., Run], store_record: Callable[..., Path]
) -> None:
    """Nothing is left out silently."""
    good = record([1, 3])
    empty = open_run(store_record([Event("train_begin")], run_id="empty", sealed=True))

    report = backtest(policy, [good, empty])

    assert [run.run_id for run in report.excluded] == ["empty"]
    assert any("empty: excluded, it recorded no step" in line for line in summary_lines(summarize(report)))


def test_the_objective_is_declared_or_guessed_only_when_one_can_be_meant(record: Callable[..., Run]) -> None:
    """The report says which."""
    policy = parse_policy(STOP_ABOVE_2)
    run = record([1], evals={1: 0.5})

    guessed = report_json(summarize(backtest(policy, [run])))["objective"]
    declared = report_json(summarize(backtest(policy, [run], objective=declared_objective("eval_loss", "max"))))[
        "objective"
    ]

    assert guessed == {"metric": "eval_loss", "mode": "min", "guessed": True, "origin": "guessed"}
    assert declared == {"metric": "eval_loss", "mode": "max", "guessed": False, "origin": "declared"}


def test_an_objective_that_no_run_evaluated_is_refused(record: Callable[..., Run]) -> None:
    """A misspelt one would leave every regret unknown. Runs without any evaluation are no sign of a mistake."""
    policy, objective = parse_policy(STOP_ABOVE_2), declared_objective("eval_los_", "min")
    with pytest.raises(TelemetryError, match=r"no run recorded .* got 'eval_los_'. Did you mean 'eval_loss'"):
        backtest(policy, [record([1], evals={1: 0.5})], objective=objective)

    assert len(backtest(policy, [record([1], run_id="bare")], objective=objective).results) == 1


@pytest.mark.parametrize(("metric", "mode"), [("score", None), ("eval_loss", "least"), ("eval_loss:max", "min")])
def test_an_objective_whose_direction_is_not_clear_is_refused(metric: str, mode: str | None) -> None:
    """The wrong direction would invert the report."""
    with pytest.raises(TelemetryError):
        declared_objective(metric, mode)


def test_without_an_objective_regret_is_not_invented(policy: Policy, store_record: Callable[..., Path]) -> None:
    """Either of two losses could be meant, so the report asks."""
    events = [
        Event("step_end", step=1, metrics={"loss": 3.0}),
        Event("evaluate", step=1, metrics={"a_loss": 1.0, "b_loss": 2.0}),
    ]

    report = backtest(policy, [open_run(store_record(events))])

    assert report.objective is None
    assert one(report)["regret"] == {"absolute": None, "relative": None}
    assert any("--objective" in line for line in summary_lines(summarize(report)))


@pytest.mark.parametrize(("count", "lines"), [(3, 3), (4, 1)])
def test_what_is_to_be_said_of_many_runs_is_said_once(
    policy: Policy, store_record: Callable[..., Path], tmp_path: Path, count: int, lines: int
) -> None:
    """A few runs are named one by one; the JSON always lists every run."""
    folder = store_record([Event("step_end", step=1, metrics={"loss": 3.0})])
    runs = []
    for number in range(count):
        shutil.copytree(folder, tmp_path / "copies" / f"run-{number}")
        runs.append(open_run(tmp_path / "copies" / f"run-{number}"))
    report = backtest(policy, runs, objective=declared_objective("eval_loss", "min"))

    said = [line for line in summary_lines(summarize(report)) if "regret is unknown" in line]

    assert len(said) == lines
    assert (lines > 1) or said[0].startswith("4 runs, such as ")
    assert all(
        any("regret is unknown" in note for note in run["notes"]) for run in report_json(summarize(report))["runs"]
    )


def test_notes_that_differ_in_numbers_share_a_line_that_names_a_run(
    policy: Policy, store_record: Callable[..., Path]
) -> None:
    """The line does not name runs by id, which says nothing to a reader."""
    events = {f"run-{step}": [Event("step_end", step=step, metrics={"loss": 3.0})] for step in range(1, 5)}
    runs = [
        open_run(store_record(own, run_id=run_id, name=f"try-{run_id[-1]}", status="failed"))
        for run_id, own in events.items()
    ]

    for order in (runs, runs[::-1]):  # The order of a store follows clocks.
        said = [
            line for line in summary_lines(summarize(backtest(policy, order))) if "savings are a lower bound" in line
        ]
        assert said == ["4 runs, such as try-1: failed at step 1: savings are a lower bound."]


def test_the_aggregate_is_the_sum_of_the_runs(policy: Policy, record: Callable[..., Run]) -> None:
    """The sum covers all judged runs."""
    runs = [
        record([1, 1, 1, 3, 1, 1], evals={1: 0.9, 2: 0.8, 3: 0.6, 4: 0.5, 6: 0.4}, run_id="a"),
        record([1] * 6, evals={step: 1 / step for step in range(1, 7)}, run_id="b"),
        record([3, 1], evals={2: 0.5}, run_id="c"),
    ]

    total = report_json(summarize(backtest(policy, runs)))["aggregate"]

    assert (total["runs"], total["fired"], total["stopped"]) == (3, 2, 2)
    assert (total["steps"], total["steps_saved"], total["seconds_saved"]) == (14, 3, 3.0)
    assert total["relative_regret"]["runs"] == 2
    assert total["relative_regret"]["max"] == pytest.approx(0.25)
    assert total["validity"] == {"prefix-exact": 2}


def test_a_frame_has_one_row_a_run(policy: Policy, record: Callable[..., Run]) -> None:
    """The frame is a polars frame for notebooks."""
    frame = backtest(policy, [record([1, 3, 1], evals={1: 0.5})]).runs_frame()

    assert frame.select("run_id", "stop_step", "steps_saved").rows() == [("run-1", 2, 1)]


def test_the_demo_s_numbers_agree_with_a_plain_recomputation(demo_store: Path) -> None:
    """A loop over the exported events, written without the engine, finds the same stop and savings."""
    from steptape import load_policy
    from steptape.rules.policy_file.policy import shipped_policies

    run = next(run for run in open_store(demo_store) if run.info.last.policy is None)
    events = list(run.events())
    result = one(backtest(load_policy(shipped_policies()["trac_fig4"]), [run], saves="replace"))

    window: list[float] = []
    saves: set[int] = set()
    counts = {"drop": 0, "near": 0, "stop": 0}
    stop = None
    for index, event in enumerate(events):
        if event.kind == "evaluate":
            window = [*window, event.metrics["eval_loss"]][-10:]
        if event.kind != "step_end" or stop is not None:
            continue
        drop = len(window) > 1 and window[-1] <= 0.85 * window[-2]
        total = 0.0
        for value in window:
            total += value
        near = len(window) > 9 and 0.9 * window[-1] <= total / len(window) <= 1.1 * window[-1]
        if window:
            for name, truth, patience in (("drop", drop, 1), ("near", near, 10), ("stop", near, 20)):
                counts[name] = counts[name] + 1 if truth else 0
                if counts[name] > patience:
                    counts[name] = 0
                    if name == "stop":
                        stop = (index, event)
                    else:
                        saves.add(index)
    assert stop is not None
    stop_index, stop_event = stop
    evals = [(i, e.metrics["eval_loss"]) for i, e in enumerate(events) if e.kind == "evaluate"]
    before = [value for i, value in evals if i <= stop_index]
    last_step = next(event for event in reversed(events) if event.kind == "step_end")

    assert result["stop"]["step"] == stop_event.step
    assert result["stop"]["event_index"] == stop_index
    assert result["saved"]["steps"] == 2000 - stop_event.step
    assert result["saved"]["seconds"] == pytest.approx((last_step.elapsed_ns - stop_event.elapsed_ns) / 1e9)
    assert result["predicted"]["checkpoints"] == len(saves)
    assert result["recorded"]["best"] == min(value for _, value in evals)
    assert (result["predicted"]["best"], result["predicted"]["final"]) == (min(before), before[-1])

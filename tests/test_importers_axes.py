"""What counts something else than the training is imported at the step where the log proves that it was logged."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call
from event_files import STARTED_S, event, simple, write_events
from imported_logs import Read, imported, lines

from steptape import backtest, open_store, sweep
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.runs.objective import Objective
from steptape.replay.runs.run_result import RunResult, Validity
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.metric_words import Mode
from steptape.store.run import Run

Reads = Callable[..., Read]

#: Metric, step and value of each logged value, in the order of logging.
Script = Iterable[tuple[str, int, float]]

NAME = "events.out.tfevents.1767323045.host"

STOP: Policy = parse_policy(
    """
controllers:
  - name: early_stop
    triggers: [on_evaluate]
    rule: argmin(valid_loss, 1000) >= 1
    operations: [hfcontrols.should_training_stop]
"""
)


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    """Import files and return the runs: ``reads({name: content}, kind, **options)``."""
    return partial(imported, tmp_path)


def by_epoch(steps: int = 2000, each: int = 100, *, base: int = 1) -> Iterator[tuple[str, int, float]]:
    """Log a loss by step, and a validation loss by epoch that is best after the sixth."""
    for step in range(1, steps + 1):
        yield "loss", step, 2 / step
        if step % each == 0:
            yield "valid_loss", step // each - 1 + base, 0.5 + abs(step - 6 * each) / (10 * each)


def by_step(steps: int = 2000, each: int = 100) -> Iterator[tuple[str, int, float]]:
    """Log the same, with true steps."""
    newest = 0
    for name, step, value in by_epoch(steps, each):
        newest = step if name == "loss" else newest
        yield name, newest, value


def event_file(script: Script) -> bytes:
    """Return a script's values as TensorBoard's file, one a second."""
    with tempfile.TemporaryDirectory() as folder:
        events = [event(step, STARTED_S + at, simple(tag, value)) for at, (tag, step, value) in enumerate(script)]
        return write_events(Path(folder, NAME), events).read_bytes()


def mlflow_files(script: Script, *, at_ms: Callable[[int], int] = lambda at: 1000 * at) -> dict[str, str]:
    """Return a script's values as MLflow's files, whose lines are a time in milliseconds, a value and a step."""
    run = "mlruns/1/" + "a" * 32
    meta = f"artifact_uri: x\nend_time: 1900000000000\nrun_id: {'a' * 32}\nrun_name: r\nstart_time: 1700000000000\n"
    files = {f"{run}/meta.yaml": meta + "status: 3\n"}
    for at, (name, step, value) in enumerate(script):
        path = f"{run}/metrics/{name}"
        files[path] = files.get(path, "") + f"{1_700_000_000_000 + at_ms(at)} {value} {step}\n"
    return files


def long_csv(script: Script) -> str:
    """Return a script's values as a long table."""
    file = io.StringIO()
    csv.writer(file).writerows([("metric", "step", "value"), *script])
    return file.getvalue()


def long_json_lines(script: Script) -> str:
    """Return a script's values as a long table of JSON lines."""
    return lines(*({"metric": name, "step": step, "value": value} for name, step, value in script))


def long_parquet(script: Script) -> bytes:
    """Return a script's values as a long table in Parquet."""
    names, steps, values = zip(*script, strict=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"metric": names, "step": steps, "value": values}), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def wide_csv(script: Script) -> str:
    """Return a script's values as a table with a column for each metric."""
    rows = [
        f"{step},{value if name == 'loss' else ''},{value if name != 'loss' else ''}" for name, step, value in script
    ]
    return "\n".join(("step,loss,valid_loss", *rows, ""))


def json_lines(script: Script) -> str:
    """Return a script's values as JSON lines."""
    return lines(*({"step": step, name: value} for name, step, value in script))


#: The files of a script in each kind of log.
WRITERS: dict[str, Callable[[Script], dict[str, Any]]] = {
    "tensorboard": lambda script: {f"run/{NAME}": event_file(script)},
    "mlflow": mlflow_files,
    "long.csv": lambda script: {"long.csv": long_csv(script)},
    "long.jsonl": lambda script: {"long.jsonl": long_json_lines(script)},
    "long.parquet": lambda script: {"long.parquet": long_parquet(script)},
    "wide.csv": lambda script: {"wide.csv": wide_csv(script)},
    "jsonl": lambda script: {"log.jsonl": json_lines(script)},
}

writers = pytest.mark.parametrize("writer", WRITERS)


def steps_of(runs: dict[str, list[tuple[str, int, dict[str, float]]]], name: str) -> list[int]:
    """Return the steps of a metric in the only run."""
    (events,) = runs.values()
    return [step for _, step, metrics in events if name in metrics]


def only_run(tmp_path: Path) -> Run:
    """Return the store's one run."""
    (run,) = open_store(tmp_path / "store")
    return run


def judged(run: Run, policy: Policy = STOP) -> RunResult:
    """Return the result of a policy on one run."""
    (result,) = backtest(policy, [run], objective=Objective("valid_loss", Mode.MIN)).results
    return result


def outcomes_of(tmp_path: Path, **options: Any) -> list[Outcome]:
    """Import ``logs`` into ``store``."""
    found = find_sources([tmp_path / "logs"], all_readers())
    return list(import_sources(tmp_path / "store", found.sources, ReadOptions(**options)))


# --- order and clock ------------------------------------------------------------------------------------------------


@writers
def test_a_validation_by_epoch_is_at_the_step_where_it_was_logged(reads: Reads, writer: str) -> None:
    """Everything else stays where it was."""
    runs, problems = reads(WRITERS[writer](by_epoch()))

    assert steps_of(runs, "valid_loss") == list(range(100, 2001, 100))
    assert steps_of(runs, "loss") == list(range(1, 2001))
    assert problems == []


@pytest.mark.parametrize("writer", ["tensorboard", "wide.csv"])
def test_a_backtest_on_epochs_beside_steps_is_the_backtest_on_true_steps(
    reads: Reads, tmp_path: Path, writer: str
) -> None:
    """The rule stops after the epoch that is worse than the best one."""
    results = []
    for script in (by_epoch(), by_step()):
        reads(WRITERS[writer](script))
        results.append(judged(only_run(tmp_path)))
        for file in sorted((tmp_path / "store").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()

    assert [(one.ending.step if one.ending else None, one.steps_saved, one.regret) for one in results] == [
        (700, 1300, 0.0)
    ] * 2
    assert [one.stop.validity for one in results if one.stop] == [Validity.PREFIX_EXACT] * 2


@writers
@pytest.mark.parametrize("base", [0, 5])
def test_epochs_may_be_counted_from_any_number(reads: Reads, writer: str, base: int) -> None:
    """Order or clock say where each belongs, whatever it is called."""
    runs, _ = reads(WRITERS[writer](by_epoch(600, base=base)))

    assert steps_of(runs, "valid_loss") == list(range(100, 601, 100))


@writers
def test_a_series_that_is_always_at_step_0_is_where_it_was_logged(reads: Reads, writer: str) -> None:
    """It counts nothing at all."""
    runs, _ = reads(
        WRITERS[writer]((name, 0 if name != "loss" else step, value) for name, step, value in by_epoch(500))
    )

    assert steps_of(runs, "valid_loss") == [100, 200, 300, 400, 500]


@writers
def test_batches_of_the_validation_are_at_the_step_of_the_training(reads: Reads, writer: str) -> None:
    """Their counter runs within an epoch, or through all."""
    script = []
    for name, step, value in by_epoch(300):
        of_epoch = [("valid_loss", 20 * (step - 1) + batch, value) for batch in range(20)]
        script += [(name, step, value)] if name == "loss" else of_epoch
    runs, _ = reads(WRITERS[writer](script))

    assert steps_of(runs, "valid_loss") == [100] * 20 + [200] * 20 + [300] * 20


def after_each(script: Script, lag: int) -> Iterator[tuple[str, int, float]]:
    """Log each evaluation some steps of the training later, with its own step, as an asynchronous evaluator does."""
    waiting: list[tuple[int, tuple[str, int, float]]] = []
    for name, step, value in script:
        if name == "loss":
            while waiting and waiting[0][0] <= step:
                yield waiting.pop(0)[1]
            yield name, step, value
        else:
            waiting.append((step + lag, (name, step, value)))
    yield from (value for _, value in waiting)


@writers
@pytest.mark.parametrize("lag", [1, 40, 130, 5000])
def test_an_evaluation_with_true_steps_keeps_them_however_late_it_is_logged(
    reads: Reads, writer: str, lag: int
) -> None:
    """A lag grows no counter. What is logged after the training spans its steps."""
    runs, _ = reads(WRITERS[writer](after_each(by_step(), lag)))

    assert sorted(steps_of(runs, "valid_loss")) == list(range(100, 2001, 100))


@writers
def test_an_evaluation_before_the_training_of_its_step_keeps_it(reads: Reads, writer: str) -> None:
    """Some loops evaluate first."""
    script = [
        value for step in range(10, 201, 10) for value in (("valid_loss", step, 1.0), ("loss", step - 1, 1 / step))
    ]
    runs, _ = reads(WRITERS[writer](script))

    assert sorted(steps_of(runs, "valid_loss")) == list(range(10, 201, 10))


@writers
def test_a_final_test_without_a_step_is_at_the_end(reads: Reads, writer: str) -> None:
    """At step 0 a rule would see it before the training."""
    runs, _ = reads(
        WRITERS[writer]([*((name, step, 1 / step) for name, step, _ in by_step(50, 100)), ("test", 0, 0.5)])
    )

    name = "valid_loss" if writer == "wide.csv" else "test"
    assert steps_of(runs, name) == [50]


def test_training_metrics_by_epoch_are_logs_and_those_of_one_epoch_one_event(reads: Reads, tmp_path: Path) -> None:
    """They finish no update. What is known to be an epoch is the event's; other counts are an attribute."""
    script = []
    for name, step, value in by_epoch(200):
        script += [("lr", step, 0.1), ("valid_acc", step, 0.5)] if name != "loss" else []
        script.append((name, step, value))
    reads({f"run/{NAME}": event_file(script)})

    found = [event for event in only_run(tmp_path).events() if event.step == 200]
    assert [(each.kind, *each.metrics) for each in found] == [
        ("step_end", "loss"),
        ("log", "lr"),
        ("evaluate", "valid_acc", "valid_loss"),
    ]
    assert [(each.epoch, dict(each.attrs)) for each in found[1:]] == [(None, {"logged_step": 2})] * 2


def test_a_file_of_the_validation_alone_is_placed_by_its_clock(reads: Reads) -> None:
    """Keras writes two folders, each with an order of its own."""
    files = {}
    for part, tag in (("train", "loss"), ("validation", "valid_loss")):
        events = [
            event(step, STARTED_S + at, simple("loss", value))
            for at, (name, step, value) in enumerate(by_epoch(400))
            if name == tag
        ]
        files[part] = events
    runs, _ = reads({f"fit/{part}/{NAME}.v2": _written(events) for part, events in files.items()})

    assert steps_of(runs, "validation/loss") == [100, 200, 300, 400]


def _written(events: list[bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_events(Path(folder, NAME), events).read_bytes()


def test_after_a_resume_epochs_are_at_the_steps_of_the_new_attempt(reads: Reads, tmp_path: Path) -> None:
    """Steps 201 to 250 are trained twice."""
    script = list(by_epoch(400))
    cut = next(at for at, (name, step, _) in enumerate(script) if (name, step) == ("loss", 251))
    again = next(at for at, (name, step, _) in enumerate(script) if (name, step) == ("loss", 201))
    reads({f"run/{NAME}": event_file([*script[:cut], *script[again:]])})

    found = [
        (each.attempt, each.step) for each in only_run(tmp_path).events(attempts="all") if "valid_loss" in each.metrics
    ]
    assert found == [(0, 100), (0, 200), (1, 300), (1, 400)]


# --- other proofs ---------------------------------------------------------------------------------------------------


def test_rows_of_a_table_whose_step_is_the_epoch_follow_the_training_of_the_epoch(reads: Reads, tmp_path: Path) -> None:
    """The training's epoch proves that they count epochs: two are finished after the epochs 0 and 1."""
    rows = "0,9,2.0,\n0,0,,2.5\n1,19,1.5,\n1,1,,2.25\n2,29,1.25,\n2,2,,2.0\n"
    reads({"a.csv": "epoch,step,train_loss,val_loss\n" + rows})

    evaluated = [each for each in only_run(tmp_path).events() if each.kind == "evaluate"]
    assert [(each.step, each.epoch, each.metrics["val_loss"]) for each in evaluated] == [
        (9, 1.0, 2.5),
        (19, 2.0, 2.25),
        (29, 3.0, 2.0),
    ]


@pytest.mark.parametrize("base", [0, 1])
def test_json_lines_that_have_an_epoch_and_no_step_follow_the_training(reads: Reads, tmp_path: Path, base: int) -> None:
    """The key says that they count epochs."""
    rows = []
    for step in range(1, 31):
        rows += [{"step": step, "loss": 1 / step}]
        rows += [{"epoch": step // 10 - 1 + base, "val_loss": 1.0}] if step % 10 == 0 else []
    reads({"a.jsonl": lines(*rows)})

    evaluated = [each for each in only_run(tmp_path).events() if each.kind == "evaluate"]
    assert [(each.step, each.epoch) for each in evaluated] == [(10, 1.0), (20, 2.0), (30, 3.0)]


@writers
def test_a_log_of_few_training_rows_has_several_epochs_at_one_step(reads: Reads, writer: str) -> None:
    """Each is an event; none is placed before its time."""
    script = [each for each in by_epoch(1000) if each[0] != "loss" or each[1] % 250 == 0]
    runs, _ = reads(WRITERS[writer](script))

    assert steps_of(runs, "valid_loss") == [1, 2, 250, 250, 500, 500, 500, 750, 750, 1000]


def test_a_metric_that_is_logged_with_both_counts_is_placed_by_the_others_of_its_row(reads: Reads) -> None:
    """The learning rate is in every row, so it says nothing of what a row counts."""
    rows: list[dict[str, float]] = []
    for step in range(10, 301, 10):
        rows += [{"step": step, "loss": 1 / step, "lr": 0.1}]
        rows += [{"step": step // 100, "val_loss": 1.0, "lr": 0.2}] if step % 100 == 0 else []
    runs, _ = reads({"a.jsonl": lines(*rows)})

    assert steps_of(runs, "val_loss") == [100, 200, 300]
    assert steps_of(runs, "loss") == list(range(10, 301, 10))


@pytest.mark.parametrize("evaluations", ["before", "after"])
def test_a_table_that_is_sorted_by_metric_is_placed_by_its_clock(reads: Reads, evaluations: str) -> None:
    """Its order is not that of the log."""
    losses = "".join(f"loss,{step},1,{1_700_000_000 + step}\n" for step in range(1, 301))
    others = "".join(f"val_loss,{epoch},1,{1_700_000_000 + 100 * epoch}\n" for epoch in (1, 2, 3))
    rows = others + losses if evaluations == "before" else losses + others
    runs, _ = reads({"a.csv": "metric,step,value,timestamp\n" + rows})

    assert steps_of(runs, "val_loss") == [100, 200, 300]


def train_csv(*, epochs: bool = False, clock: bool = False) -> str:
    """Return a training of 20 epochs of 100 steps, counted from 1; the epoch counts from 0."""
    head = "step,loss" + ",epoch" * epochs + ",timestamp" * clock
    rows = (
        f"{step},{2 / step}" + f",{(step - 1) // 100}" * epochs + f",{1_700_000_000 + step}" * clock
        for step in range(1, 2001)
    )
    return "\n".join((head, *rows, ""))


def val_csv(column: str = "epoch", *, base: int = 1, clock: bool = False) -> str:
    """Return an evaluation after each of the 20 epochs."""
    rows = (
        f"{epoch + base},{0.5 + abs(epoch - 5) / 10}" + f",{1_700_000_000.5 + 100 * (epoch + 1)}" * clock
        for epoch in range(20)
    )
    return "\n".join((f"{column},valid_loss" + ",timestamp" * clock, *rows, ""))


EPOCHS = list(range(100, 2001, 100))


@pytest.mark.parametrize("column", ["epoch", "step"])
@pytest.mark.parametrize("base", [0, 1])
def test_a_file_by_epoch_beside_one_by_step_is_placed_by_the_clock_or_the_epochs(
    reads: Reads, tmp_path: Path, column: str, base: int
) -> None:
    """The training's epochs may be counted from another number."""
    with_clock = {"a/train.csv": train_csv(clock=True), "a/val.csv": val_csv(column, base=base, clock=True)}
    with_epochs = {"b/train.csv": train_csv(epochs=True), "b/val.csv": val_csv(column, base=base)}
    runs, problems = reads({**with_clock, **with_epochs})

    assert [[step for kind, step, _ in events if kind == "evaluate"] for _, events in sorted(runs.items())] == [
        EPOCHS
    ] * 2
    assert problems == []
    assert [(run.info.source or {}).get("unplaced") for run in open_store(tmp_path / "store")] == [None] * 2


@pytest.mark.parametrize("column", ["epoch", "step"])
def test_what_nothing_places_is_at_the_end_and_no_step_is_counted_on_it(
    reads: Reads, tmp_path: Path, column: str
) -> None:
    """All is known at the end at the latest. The stop is unknown, and the reason names metric and flag."""
    runs, _ = reads({"train.csv": train_csv(), "val.csv": val_csv(column)})

    assert steps_of(runs, "valid_loss") == [2000] * 20
    assert (only_run(tmp_path).info.source or {})["unplaced"] == ["valid_loss"]
    result = judged(only_run(tmp_path))
    assert result.stop is not None
    assert (result.stop.validity, result.predicted, result.steps_saved, result.regret) == (
        Validity.CENSORED,
        None,
        None,
        None,
    )
    assert "nothing says at which step 'valid_loss' was logged: import the log with --steps-per-epoch N" in result.notes


def test_a_sweep_knows_no_more_of_such_a_stop_than_a_backtest(reads: Reads, tmp_path: Path) -> None:
    """Each variant's outcome is that of its backtest."""
    reads({"train.csv": train_csv(), "val.csv": val_csv()})
    policy = parse_policy(
        """
params: {patience: 1}
controllers:
  - name: early_stop
    triggers: [on_evaluate]
    rule: argmin(valid_loss, 1000) >= patience
    operations: [hfcontrols.should_training_stop]
"""
    )

    swept = sweep(policy, {"patience": [1, 2, 50]}, [only_run(tmp_path)], objective=Objective("valid_loss", Mode.MIN))

    assert swept.totals["not_known"].tolist() == [1, 1, 0]
    assert str(swept.totals["steps_saved"].tolist()) == "[nan, nan, 0.0]"


def test_a_stop_that_reads_no_such_value_is_known(reads: Reads, tmp_path: Path) -> None:
    """It is exact; but how good the model is by then is unknown."""
    reads({"train.csv": train_csv(), "val.csv": val_csv()})
    policy = parse_policy(
        "controllers:\n  - {name: low, triggers: [on_step_end], rule: loss < 0.01,"
        " operations: [hfcontrols.should_training_stop]}\n"
    )

    result = judged(only_run(tmp_path), policy)

    assert result.stop is not None
    assert (result.stop.validity, result.steps_saved, result.regret) == (Validity.PREFIX_EXACT, 1799, None)


@pytest.mark.parametrize("base", [0, 1])
def test_steps_per_epoch_place_every_series_of_another_count(reads: Reads, tmp_path: Path, base: int) -> None:
    """Where it begins at 0, each is at the end of its epoch, as the training's last step says."""
    runs, _ = reads({"train.csv": train_csv(), "val.csv": val_csv(base=base)}, steps_per_epoch=100)

    assert steps_of(runs, "valid_loss") == EPOCHS
    result = judged(only_run(tmp_path))
    assert result.ending is not None
    assert result.ending.step == 700


def test_an_evaluation_before_the_training_is_epoch_0(reads: Reads) -> None:
    """The last epoch is the training's end."""
    rows = "".join(f"{epoch},1\n" for epoch in range(21))
    runs, _ = reads({"train.csv": train_csv(), "val.csv": "epoch,valid_loss\n" + rows}, steps_per_epoch=100)

    assert steps_of(runs, "valid_loss") == [0, *EPOCHS]


def test_an_imported_run_is_told_of_steps_per_epoch_and_stays(reads: Reads, tmp_path: Path) -> None:
    """The command says how to go on."""
    reads({"train.csv": train_csv(), "val.csv": val_csv()})

    (again,) = outcomes_of(tmp_path)
    (asked,) = outcomes_of(tmp_path, steps_per_epoch=100)

    assert (again.state, again.unplaced) == (State.UNCHANGED, ("valid_loss",))
    assert asked.state is State.FAILED
    assert "'valid_loss' was imported without --steps-per-epoch. The run is unchanged" in (asked.problem or "")


def test_a_configured_number_of_steps_places_what_the_clock_does_not(reads: Reads) -> None:
    """The validation is logged after the training, by epoch."""
    script = sorted(by_epoch(400), key=lambda value: value[0] != "loss")
    param = {f"mlruns/1/{'a' * 32}/params/steps_per_epoch": "100"}
    runs, _ = reads(mlflow_files(script) | param)

    assert steps_of(runs, "valid_loss") == [100, 200, 300, 400]


# --- all at step 0 --------------------------------------------------------------------------------------------------


def test_values_that_are_all_at_step_0_are_counted(reads: Reads) -> None:
    """Metrics of the training that have as many values are counted alike; evaluations have the count at their time."""
    script = []
    for step in range(1, 21):
        script += [("lr", 0, 0.1), ("loss", 0, 2 / step)]
        script += [("val_loss", 0, 1.0)] if step % 5 == 0 else []
    runs, problems = reads(mlflow_files(script))

    assert next(iter(runs.values()))[:7] == [
        *(("step_end", step, {"loss": 2 / step, "lr": 0.1}) for step in range(1, 6)),
        ("evaluate", 5, {"val_loss": 1.0}),
        ("step_end", 6, {"loss": 2 / 6, "lr": 0.1}),
    ]
    assert steps_of(runs, "val_loss") == [5, 10, 15, 20]
    assert problems == []


def test_a_first_value_at_step_0_waits_for_the_second_while_a_log_grows(reads: Reads) -> None:
    """The second one says whether it is step 0, or the first of values without a step."""
    for script in ([("loss", 0, 2.0)], [("loss", 0, 2.0), ("loss", 0, 1.0)]):
        runs, problems = reads(mlflow_files(script), is_growing=True)
        assert problems == []

    assert steps_of(runs, "loss") == [1, 2]


# --- what the import says -------------------------------------------------------------------------------------------


def test_an_import_says_what_counts_something_else(reads: Reads, tmp_path: Path) -> None:
    """One line for each way, over all runs; ``--json`` has it for each run."""
    reads({f"{name}/{NAME}": event_file(by_epoch(500)) for name in "ab"} | {"z/train.csv": train_csv()})
    (tmp_path / "logs" / "z" / "val.csv").write_text(val_csv())
    for path, content in mlflow_files(("loss", 0, 1.0) for _ in range(3)).items():
        (tmp_path / "logs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "logs" / path).write_text(content)
    said = call("import", "auto", "logs", "--store", "s", folder=tmp_path)
    told = call("import", "auto", "logs", "--store", "t", "--json", folder=tmp_path)

    how = "each value is at the newest step of the training when it was logged"
    what = "'valid_loss' counts something else than 'loss' (5 of 500 steps) in 2 runs, a, b"
    assert f"note: {what}: {how}\n" in said.stderr
    assert "note: all values of run 1/r are at step 0: the values are counted instead" in said.stderr
    assert "note: nothing says at which step 'valid_loss' was logged in run z: " in said.stderr
    assert "--steps-per-epoch N" in said.stderr
    by_name = {one["name"]: one for one in map(json.loads, told.stdout.splitlines())}
    assert by_name["a"]["axes"] == [
        {"metrics": ["valid_loss"], "reference": "loss", "proof": "logged", "last": 5, "steps": 500}
    ]
    assert (by_name["a"]["unplaced"], by_name["z"]["unplaced"]) == ([], ["valid_loss"])


# --- growth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["wide.csv", "jsonl", "long.csv"])
@pytest.mark.parametrize("is_growing", [False, True])
def test_a_log_by_epoch_that_grows_ends_as_the_whole_log(
    reads: Reads, tmp_path: Path, writer: str, *, is_growing: bool
) -> None:
    """The first value of another count already is where it stays."""
    ((name, content),) = WRITERS[writer](by_epoch(60, 10)).items()
    whole, _ = reads({name: content})
    (tmp_path / "store").rename(tmp_path / "whole")
    rows = content.splitlines(keepends=True)

    for end in range(2, len(rows) + 1):
        found, problems = reads({name: "".join(rows[:end])}, is_growing=is_growing)
        assert problems == []

    assert _sorted(found) == _sorted(whole)


def _sorted(runs: dict[str, list[tuple[str, int, dict[str, float]]]]) -> list[str]:
    return sorted(repr(each) for events in runs.values() for each in events)


# --- the real tools -------------------------------------------------------------------------------------------------


def test_torch_s_summary_writer_by_epoch_is_at_the_steps_of_the_training(reads: Reads, tmp_path: Path) -> None:
    """The commonest habit of scripts that write for TensorBoard."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    make: Any = SummaryWriter
    with make(str(tmp_path / "logs" / "run")) as writer:
        for name, step, value in by_epoch():
            writer.add_scalar(name, value, step)
    runs, _ = reads({})

    assert steps_of(runs, "valid_loss") == EPOCHS
    ending = judged(only_run(tmp_path)).ending
    assert ending is not None
    assert ending.step == 700


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("store", ["file", "sqlite"])
def test_mlflow_by_epoch_is_at_the_steps_of_the_training(
    reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Its clock has milliseconds: a value of another metric at the same time came before."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = tmp_path / "logs"
    where.mkdir()
    client = mlflow.tracking.MlflowClient(f"sqlite:///{where}/m.db" if store == "sqlite" else (where / "m").as_uri())
    run = client.create_run(client.create_experiment("e")).info.run_id
    for at, (name, step, value) in enumerate(by_epoch(200, 20)):
        client.log_metric(run, name, value, timestamp=1_700_000_000_000 + at, step=step)
    runs, _ = reads({})

    assert steps_of(runs, "valid_loss") == list(range(20, 201, 20))

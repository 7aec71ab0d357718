"""Lines of plain-text logs, in the forms that tools write, become the events of a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from text_log_forms import FORMS, MMDET, TRAINER, Told

from steptape import open_run
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.readers.text_log import TextLogReader
from steptape.importers.source import ReadOptions

Import = Callable[..., tuple[list[Outcome], list[Told]]]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Write a log, import it with ``auto`` and return outcomes and events; no outcome where nothing recognises it."""

    def write(text: str, name: str = "run.log") -> tuple[list[Outcome], list[Told]]:
        path = tmp_path / "logs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        store = tmp_path / "store"
        found = find_sources([path.parent], all_readers())
        outcomes = list(import_sources(store, found.sources, ReadOptions()))
        runs = [open_run(store / outcome.run_id) for outcome in outcomes if outcome.run_id]
        return outcomes, [
            (event.kind, event.step, dict(event.metrics)) for run in runs for event in run.events(attempts="all")
        ]

    return write


@pytest.mark.parametrize("tool", FORMS)
def test_a_log_in_the_form_of_a_tool_is_read(imported: Import, tool: str) -> None:
    """Training and evaluation are told apart, steps go on from epoch to epoch, names keep their words."""
    text, expected = FORMS[tool]
    (outcome,), events = imported(text)

    assert (outcome.kind, outcome.problem) == ("text", None)
    assert [(kind, step, in_order(metrics)) for kind, step, metrics in events] == [
        (kind, step, in_order(metrics)) for kind, step, metrics in expected
    ]


def in_order(metrics: dict[str, float]) -> list[tuple[str, str]]:
    """Return the metrics by name, as text: NaN equals NaN."""
    return sorted((name, repr(float(value))) for name, value in metrics.items())


@pytest.mark.parametrize(("lines", "after"), [(400, 0), (10_000, 10_000)])
def test_a_log_is_recognised_wherever_its_steps_begin(imported: Import, lines: int, after: int) -> None:
    """Scripts that print their own source first have thousands of lines before the first step."""
    text = "import torch\n" * lines + "step:1/9 val_loss:3.2\nstep:2/9 val_loss:3.1\n" + "done\n" * after
    _, events = imported(text)

    assert events == [("evaluate", 1, {"val_loss": 3.2}), ("evaluate", 2, {"val_loss": 3.1})]


@pytest.mark.parametrize(
    "text",
    [
        "wait on step 1, then compute update of 1\nwait on step 2, then compute update of 2\n",
        "# step 1: loss 5\n# step 2: loss 6\n",
        "Step 1: install CUDA 12\nStep 2: install torch 2\n",
        "step 1: wait 5 seconds\nstep 2: wait 5 seconds\n",
        "def train(step=0, lr=0.1):\n    return train(step=1, lr=0.2)\n",
        "+ python -c 'h=64; s=1024; v=50257'\n+ python -c 'h=64; s=2048; v=50257'\n",
        "$ train step=1 loss=2\n$ train step=2 loss=2\n",
        "[INFO|trainer.py:1148] 2024-01-02 10:00:00,285 >>   Gradient Accumulation steps = 1\n" * 2,
    ],
)
def test_prose_and_source_code_are_no_log(imported: Import, text: str) -> None:
    """A log says again and again what it measures; in a recipe each step has its own words."""
    assert imported(text, "notes.txt") == ([], [])


CODE = """\
def orthogonalized(G, steps=10, eps=1e-7):
    # wait on step 1, then compute update of 1
    if step == 1: work(step=3, lr=1)
    val_loss = 0
    return 1.0
"""


def test_source_code_before_a_log_is_no_part_of_it(imported: Import) -> None:
    """It has steps and losses, too."""
    _, events = imported(CODE + "step 7, loss = 2.5\nstep 8, loss = 2.4\n")

    assert events == [("step_end", 7, {"loss": 2.5}), ("step_end", 8, {"loss": 2.4})]


@pytest.mark.parametrize(
    "line",
    [
        "+ python -c 'h=64; l=2; s=1024; v=50257; print(h)'",
        "2024-01-02T10:00:00Z + torchrun train.py step=1024 lr=1",
        "s=1024; v=50257",
        "[INFO|trainer.py:1148] 2024-01-02 10:00:00,285 >>   Gradient Accumulation steps = 1",
        "[INFO|trainer.py:1148] 2024-01-02 10:00:00,285 >>   Num Epochs = 3",
        "Changing LR from 0.25 to 0.125",
        "MODEL:\n  MASK: True\n  DEVICE: cuda\n  IOU_THRESHOLD: 0.5\nSOLVER:\n  BASE_LR: 0.0025\nTEST:\n  SCORE: 0.5",
        "arch: resnet50\nbase_lr: 0.5\ndist_url: tcp://host:23456\nepochs: 400\nfinal_lr: 0.25",
        "[12/25 14:22:26] net : \n[12/25 14:22:26]   name : x\n[12/25 14:22:26]   on : y\n[12/25 14:22:26]   lr : 0.5",
        "[ 0/78]  eta: 0:00:10  time: 1.5  data: 0.5  max mem: 862\n[78/78]  eta: 0:00:00  time: 0.5  data: 0.5",
    ],
)
def test_commands_and_settings_in_a_log_are_no_values(imported: Import, line: str) -> None:
    """A shell traces its commands, and a trainer prints its settings, before and in the midst of the steps."""
    _, events = imported(f"{line}\nstep 7 loss 2.5\n{line}\nstep 8 loss 2.4\n")

    assert events == [("step_end", 7, {"loss": 2.5}), ("step_end", 8, {"loss": 2.4})]


def test_results_among_texts_are_no_settings(imported: Import) -> None:
    """A script may list its results as others do their settings."""
    _, events = imported("".join(f"Epoch {n}\nmodel: resnet\ndevice: cuda\nval_loss: 0.5\nacc: 0.25\n" for n in (1, 2)))

    assert events == [
        (kind, epoch, metrics)
        for epoch in (1, 2)
        for kind, metrics in (("evaluate", {"val_loss": 0.5}), ("step_end", {"acc": 0.25}))
    ]


def test_lines_that_begin_as_settings_do_are_none(imported: Import) -> None:
    """Many tools begin a line with ``Epoch:`` and a bracket."""
    _, events = imported("".join(f"Epoch: [0][{n}/9]\tTime 0.5 (0.5)\tLoss 2.5 (2.5)\n" for n in range(1, 9)))

    assert events == [("step_end", step, {"Time": 0.5, "Loss": 2.5}) for step in range(1, 9)]


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ('INFO:root:config {"lr": 0.003, "epochs": 30}', {"lr": 0.003, "epochs": 30}),
        ("2026-01-02 10:00:00,123 [INFO] args: {'lr': 0.003, 'amp': None}", {"lr": 0.003, "amp": None}),
        (
            "Hyperparameters = {'optim': {'lr': 1e-3, 'betas': (0.9, 0.99)}}",
            {"optim": {"lr": 1e-3, "betas": [0.9, 0.99]}},
        ),
        (
            "Namespace(lr=0.5, warmup=-1, out='x (y)', f=<function f at 0x7f>)",
            {"lr": 0.5, "warmup": -1, "out": "x (y)"},
        ),
        ("INFO: args: Namespace(lr=0.5, sub=Namespace(a=1), device=device(type='cuda'))", {"lr": 0.5, "sub": {"a": 1}}),
        ("TrainingArguments(lr=1e-4, path='C:\\data', run=__import__('os').system('x'))", {"lr": 1e-4}),
        ("Config(lr=0.5, seed=<unfinished", {}),
        ("loaded the config {of a model}", {}),
        (f"config {{'lr': {'(' * 3000}{')' * 3000}}}", {}),
    ],
)
def test_a_printed_configuration_is_the_run_s(
    imported: Import, tmp_path: Path, line: str, config: dict[str, object]
) -> None:
    """It is no event, whatever it names; what is no plain value is text, and nothing of it is run."""
    _, events = imported(f"{line}\nstep 7 loss 2.5\nstep 8 loss 2.4\n")

    (path,) = (tmp_path / "store").glob("import-*")
    found = open_run(path).info.config
    assert {key: value for key, value in found.items() if key in config} == config
    assert bool(found) == bool(config)
    assert events == [("step_end", 7, {"loss": 2.5}), ("step_end", 8, {"loss": 2.4})]


def test_each_run_of_a_log_has_the_configuration_that_is_printed_before_it(imported: Import, tmp_path: Path) -> None:
    """A later one replaces an earlier one of the same word."""
    steps = "step 1 loss 2.5\nstep 2 loss 2.4\nstep 3 loss 2.3\n"
    imported(f"args {{'lr': 1, 'old': 1}}\n{steps}args {{'lr': 2}}\n{steps}")

    found = [open_run(path).info.config for path in (tmp_path / "store").glob("import-*")]
    assert sorted(map(str, found)) == ["{'lr': 1, 'old': 1}", "{'lr': 2}"]


@pytest.mark.parametrize(
    ("text", "planned"),
    [
        ("step 5/1000 loss 2\nstep 9/1000 loss 1\n", 1000),
        ("epoch 3/10 loss 2\nepoch 4/10 loss 1\n", 10),
        (
            "epoch 0 | update 10/3000 | loss 2\nepoch 0 | update 20/3000 | loss 1\nepoch 1 | update 30/3000 | loss 1\n",
            3000,
        ),
        ("epoch 1/4 | step 50/100 | loss 2\nepoch 2/4 | step 20/100 | loss 1\n", 400),
        ("epoch 1 | step 50/100 | loss 2\nepoch 2 | step 20/100 | loss 1\n", None),
        ("epoch 1 | step 50/100 | loss 2\nepoch 1 | step 60/100 | loss 1\n", None),
        ("step 5/1000 loss 2\nstep 9/2000 loss 1\n", None),
    ],
)
def test_the_second_number_of_a_counter_is_the_plan_where_it_stays_the_same(
    imported: Import, tmp_path: Path, text: str, planned: int | None
) -> None:
    """Within one epoch it may be that of the epoch."""
    imported(text)

    (path,) = (tmp_path / "store").glob("import-*")
    assert open_run(path).info.last.plan.total_steps == planned


def test_a_clock_before_a_line_is_the_clock_of_the_run(imported: Import, tmp_path: Path) -> None:
    """The run begins at its first value; a line without a zone is in UTC."""
    (outcome,), _ = imported("2024-01-02 10:00:00 step 5 loss 2.5\n2024-01-02 11:30:00,5 step 10 loss 2.25\n")

    run = open_run(tmp_path / "store" / outcome.run_id)
    assert [event.elapsed_ns for event in run.events()] == [0, 5_400_500_000_000]
    assert run.run_id.startswith("20240102T100000-")


@pytest.mark.parametrize(
    "times",
    [
        ("10:00:07", "10:00:09", "11:00:07.5"),
        ("[23:59:58]", "[00:00:00]", "[00:59:58,5]"),
        ("11:59:58 PM", "12:00:00 AM", "12:59:58.5 AM"),
        (
            "I0102 23:59:58.0  12 solver.cpp:330]",
            "I0103 00:00:00.0  12 solver.cpp:330]",
            "I0103 00:59:58.5  12 s.cpp:3]",
        ),
        ("[01/02 00:00:07 d2.utils]:", "[01/02 00:00:09 d2.utils]:", "[01/02 01:00:07.5 d2.utils]:"),
        ("Jan  2 10:00:07", "Jan  2 10:00:09", "Jan  2 11:00:07.5"),
    ],
)
def test_times_without_a_year_are_times_since_the_first(
    imported: Import, tmp_path: Path, times: tuple[str, ...]
) -> None:
    """The run has no wall clock, and no start. Midnight passes."""
    (outcome,), _ = imported("".join(f"{time} step {5 * n} loss 2.{n}\n" for n, time in enumerate(times, start=1)))

    run = open_run(tmp_path / "store" / outcome.run_id)
    assert [event.elapsed_ns for event in run.events()] == [0, 2_000_000_000, 3_600_500_000_000]
    assert {event.time_ns for event in run.events()} == {0}


def test_a_line_that_is_a_little_late_turns_no_clock_over(imported: Import, tmp_path: Path) -> None:
    """Several processes write into one log."""
    (outcome,), _ = imported("10:00:07 step 5 loss 2.5\n10:00:06 step 6 loss 2.25\n10:00:08 step 7 loss 2.125\n")

    run = open_run(tmp_path / "store" / outcome.run_id)
    assert [event.elapsed_ns for event in run.events()] == [0, 0, 1_000_000_000]


def test_the_clock_of_each_attempt_begins_with_it(imported: Import, tmp_path: Path) -> None:
    """A training that resumed two hours later trained no two hours."""
    times = ("10:00:00", "10:00:10", "12:00:10", "12:00:20")
    text = "".join(f"{time} step {step} loss 2.{step}\n" for time, step in zip(times, (1, 3, 2, 3), strict=True))
    (outcome,), _ = imported(text)

    run = open_run(tmp_path / "store" / outcome.run_id)
    told = [(event.attempt, event.elapsed_ns) for event in run.events()]
    assert told == [(0, 0), (1, 0), (1, 10_000_000_000)]
    (row,) = run.rows("SELECT duration_s, paused_s, started FROM runs")
    assert row == {"duration_s": 20.0, "paused_s": 0.0, "started": None}


def test_values_below_a_counter_are_one_event_with_its_clock(imported: Import) -> None:
    """Its gradient norm and learning rate, too. What is indented less is not below it."""
    text = "".join(
        f"[step={step}/30]\n    grad_norm=0.5\n    lr: 0.1\n    loss=2.{step}\nworkers=8\n" for step in (1, 2)
    )
    _, events = imported(text)

    assert events == [
        ("step_end", step, {"grad_norm": 0.5, "lr": 0.1, "loss": loss}) for step, loss in ((1, 2.1), (2, 2.2))
    ]


EPOCHS_WITHOUT_A_COUNTER = "".join(
    f"step {step} loss {1 / (step + 3 * epoch)}\n" for epoch in range(20) for step in (1, 2, 3)
)


def test_dozens_of_equal_runs_in_a_file_are_told_and_not_made(imported: Import) -> None:
    """They are epochs that nothing counts, or runs that nothing tells apart."""
    (outcome,), events = imported(EPOCHS_WITHOUT_A_COUNTER)

    assert (outcome.state, events) == (State.FAILED, [])
    assert str(outcome.problem).endswith(
        "the steps begin again 19 times, and end at 3 each time. If these are epochs, log a step that goes on. "
        "If they are runs, write each to its own file"
    )


def test_dozens_of_runs_that_differ_in_length_are_runs(tmp_path: Path) -> None:
    """One of them is longer; the last one may still be written."""
    path = tmp_path / "run.log"
    path.write_text(EPOCHS_WITHOUT_A_COUNTER + "step 4 loss 2\nstep 1 loss 3\nstep 2 loss 2\n")

    assert len([[*run.facts] for run in TextLogReader().read([path], ReadOptions())]) == 21


def test_two_values_for_one_name_in_a_line_are_told(imported: Import) -> None:
    """The first is taken; the same value twice is no contradiction."""
    (outcome,), events = imported("step 5 loss 2.5 loss 2.7\nstep 6 loss 2.4 loss 2.4\n")

    assert events == [("step_end", 5, {"loss": 2.5}), ("step_end", 6, {"loss": 2.4})]
    assert outcome.problem is not None
    assert "1 line holds two values for one name, and the first value was imported" in outcome.problem
    assert "'loss' on line 1" in outcome.problem


def test_lines_that_ranks_repeat_are_left_out_and_told(imported: Import) -> None:
    """A rule's patience would count each. Another value of the same step is no repetition."""
    lines = [
        f"step: {step} loss: {loss} tps: {tps}\n"
        for step, loss, tps in ((1, 2.5, 7), (1, 2.5, 8), (2, 2.4, 7), (2, 2.3, 7))
    ]
    (outcome,), events = imported("".join(lines))

    assert [(step, metrics["loss"]) for _, step, metrics in events] == [(1, 2.5), (2, 2.4), (2, 2.3)]
    assert outcome.problem is not None
    assert "1 row was skipped; the first is line 2: it repeats the line before it" in outcome.problem


def test_a_training_that_is_resumed_goes_on_where_it_was(imported: Import) -> None:
    """The epochs go back; so do the steps that they count."""
    (outcome,), events = imported(MMDET + MMDET.splitlines(keepends=True)[1])

    assert [step for _, step, _ in events] == [50, 950, 962, 1012, 950]
    assert outcome.steps == 1012


def test_a_trainer_that_begins_again_is_another_run(imported: Import) -> None:
    """Its epochs begin again."""
    outcomes, events = imported(TRAINER + TRAINER)

    assert len(outcomes) == 2
    assert repr(events[:6]) == repr(events[6:])


@pytest.mark.parametrize(("losses", "hidden"), [((2.5, 2.25), ["loss"]), ((2.5, math.nan), [])])
def test_losses_that_a_trainer_printed_may_hide_nan(
    imported: Import, tmp_path: Path, losses: tuple[float, ...], hidden: list[str]
) -> None:
    """They do not, if one of them is not finite."""
    rows = [{"loss": loss, "epoch": 0.1 * (index + 1)} for index, loss in enumerate(losses)]
    (outcome,), _ = imported("".join(f"{row}\n" for row in rows))

    source = open_run(tmp_path / "store" / outcome.run_id).info.source
    assert source is not None
    assert source["nan_filtered"] == hidden


MLLOG = """\
launching on 4 nodes, step 1 of 3: pull the image, 12 GB
:::MLLOG {"namespace": "", "time_ms": 1662603025256, "event_type": "POINT_IN_TIME", "key": "opt_lr", "value": 0.0025, "metadata": {"lineno": 1}}
:::MLLOG {"namespace": "", "time_ms": 1662603115000, "event_type": "INTERVAL_START", "key": "run_start", "value": null, "metadata": {"lineno": 2}}
0: :::MLLOG {"namespace": "", "time_ms": 1662603495499, "event_type": "POINT_IN_TIME", "key": "learning_rate", "value": 0.0024, "metadata": {"epoch_num": 1, "step_num": 473}}
0: :::MLLOG {"namespace": "", "time_ms": 1662603495500, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 0.018, "metadata": {"epoch_num": 1, "step_num": 473}}
:::MLLOG {"namespace": "", "time_ms": 1662603495501, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {"throughput": 318.5}, "metadata": {"epoch": 1, "step": 473}}
:::MLLOG {"namespace": "", "time_ms": 1662603543547, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", "value": 0.58, "metadata": {"epoch_num": 1, "step_num": 473}}
:::MLLOG {"namespace": "", "time_ms": 1662603543548, "event_type": "POINT_IN_TIME", "key": "eval_loss", "value": 0.044, "metadata": {"epoch_num": 1, "step_num": 473}}
:::MLLOG {"namespace": "", "time_ms": 1662603600000, "event_type": "INTERVAL_END", "key": "run_stop", "value": null, "metadata": {"status": "STATUS"}}
"""  # noqa: E501


@pytest.mark.parametrize(("status", "ending"), [("success", "completed"), ("aborted", "failed")])
def test_a_log_of_mlperf_is_a_run_with_its_clock(imported: Import, tmp_path: Path, status: str, ending: str) -> None:
    """Results have a counter; settings have none. What is measured at one step is one event."""
    (outcome,), events = imported(MLLOG.replace("STATUS", status), "result_0.txt")

    assert (outcome.kind, outcome.problem) == ("mllog", None)
    assert events == [
        ("step_end", 473, {"learning_rate": 0.0024, "train_loss": 0.018, "tracked_stats/throughput": 318.5}),
        ("evaluate", 473, {"eval_accuracy": 0.58, "eval_loss": 0.044}),
    ]
    run = open_run(tmp_path / "store" / outcome.run_id)
    assert [(event.time_ns, event.elapsed_ns) for event in run.events()] == [
        (1_662_603_495_501_000_000, 380_501_000_000),
        (1_662_603_543_548_000_000, 428_548_000_000),
    ]
    assert (run.status, run.info.config) == (ending, {"opt_lr": 0.0025})


def test_a_log_of_mlperf_without_an_end_is_of_a_run_that_has_not_ended(imported: Import, tmp_path: Path) -> None:
    """Nobody is said to have stopped it."""
    (outcome,), _ = imported(MLLOG[: MLLOG.rindex(":::MLLOG")])

    info = open_run(tmp_path / "store" / outcome.run_id).info
    assert info.source is not None
    assert (info.last.status, info.source["ending"]) == ("interrupted", "open")


def test_a_log_of_mlperf_counts_what_its_evaluations_count(imported: Import) -> None:
    """Here they count samples; a result that counts something else is left out, and told."""
    text = "".join(
        f':::MLLOG {{"time_ms": 1662603495499, "key": "{key}", "value": 0.5, "metadata": {{{where}}}}}\n'
        for key, where in (
            ("train_loss", '"samples_count": 32'),
            ("eval_loss", '"samples_count": 64'),
            ("power", '"step": 2'),
        )
    )
    (outcome,), events = imported(text)

    assert events == [("step_end", 32, {"train_loss": 0.5}), ("evaluate", 64, {"eval_loss": 0.5})]
    assert outcome.problem is not None
    assert "line 3: 'power' counts no samples, as the evaluations do" in outcome.problem


def test_values_left_out_of_a_block_are_counted(imported: Import, tmp_path: Path) -> None:
    """A block goes on after them. Units are text; times, versions and words are no values."""
    text = "".join(
        f"[step={step}/10]\n    loss=0.5\n    note=2.5 of it\n    reader: v1, 10:00:05 on 2024-01-02\n    lr=0,25\n"
        "    version: 1.2.3\n    at: 10:00:05\n    memory=1.5GiB\n    grad_norm=0.25\n"
        for step in (1, 2)
    )
    (outcome,), events = imported(text)

    assert events == [("step_end", step, {"loss": 0.5, "grad_norm": 0.25}) for step in (1, 2)]
    assert outcome.problem is not None
    assert "4 rows were skipped; the first is line 3: a block is read without 'note=2.5 of it'" in outcome.problem
    run = open_run(tmp_path / "store" / outcome.run_id)
    assert [dict(event.attrs) for event in run.events()] == [{"memory": "1.5GiB"}] * 2


def test_a_block_ends_with_its_indentation(imported: Import) -> None:
    """What follows it is no part of it, and nothing is missed."""
    text = "".join(f"[step={step}]\n    loss=0.5\n  note=1.5 of it\nPeak memory: 12 of it\n" for step in (1, 2))
    (outcome,), events = imported(text.replace("  note", "note"))

    assert (events, outcome.problem) == ([("step_end", step, {"loss": 0.5}) for step in (1, 2)], None)

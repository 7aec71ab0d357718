"""Lines of plain-text logs, in the forms that tools write, become the events of a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import open_run
from steptape.importers.discovery import find_sources
from steptape.importers.importing import Outcome, import_sources
from steptape.importers.registry import all_readers
from steptape.importers.source import ReadOptions

#: Kind, step and metrics of an event.
Told = tuple[str, int, dict[str, float]]
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


NANOGPT = """\
step 0: train loss 10.9886, val loss 10.9898
iter 0: loss 10.9872, time 2ms, mfu -100.00%
step 250: train loss 6.1040, val loss 6.1234
iter 250: loss 6.2030, time 2ms, mfu 1.21%
"""
TORCHTITAN = """\
[rank0]:[titan] 2025-10-30 14:32:58,897 - root - INFO - step:  1  loss:  8.1661  grad_norm:  3.6855  memory:  2.47GiB(3.12%)  tps: 3,502
[rank1]:[titan] 2025-10-30 14:32:58,898 - root - INFO - step:  1  loss:  8.1661  grad_norm:  3.6855  tps: 3,503
[rank0]:[titan] 2025-10-30 14:32:58,990 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss:  6.1098  \x1b[34mmemory:  2.49GiB(3.14%)\x1b[39m
[rank0]:[titan] 2025-10-30 14:32:59,090 - root - INFO - validate step:  2  loss:  6.2098  memory:  2.49GiB(3.14%)  tps: 9,138
"""  # noqa: E501
DEEPSPEED = """\
***** Evaluating perplexity, Epoch 0/16 *****
ppl: 4998.5
Beginning of Epoch 1/16, Total Micro Batches 920
steps: 10 loss: 8.9300 iter time (s): 1.234 samples/sec: 3.241
[2023-12-29 13:02:49,647] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0003, 0.0003], mom=[(0.9, 0.999)]
[2023-12-29 13:02:49,654] [INFO] [timer.py:260:stop] epoch=0/micro_step=20/global_step=20, CurrSamplesPerSec=11.5, MemAllocated=1.87GB
Epoch 1/16 with loss 8.5
"""  # noqa: E501
MEGATRON = """\
 iteration        1/    5000 | consumed samples:           96 | elapsed time per iteration (ms): 18706.1 | learning rate: 6.000E-05 | lm loss: 6.444662E+00 | number of nan iterations:   0 |
-------------------------------------------------------------------------------------
 validation loss at iteration 1 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |
 validation loss at iteration 1 on test set | lm loss value: 7.500000E+00 |
 [2026-04-28 00:00:03] iteration        2/    5000 | lm loss: 5.0E+00 |
"""  # noqa: E501
NEMO = """\
Training epoch 0, iteration 0/99 | lr: 5e-09 | global_batch_size: 512 | global_step: 0 | reduced_train_loss: 11.04
Training epoch 0, iteration 1/99 | lr: 1e-08 | global_batch_size: 512 | global_step: 1 | reduced_train_loss: 11.02
"""
FAIRSEQ = """\
2025-10-15 11:33:32 | INFO | train_inner | epoch 001:    100 / 487 loss=4.655, ppl=25.2, num_updates=100, lr=0.01
2025-10-15 11:33:44 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.001 | ppl 4 | num_updates 487
2025-10-15 11:33:44 | INFO | train | epoch 001 | loss 3.001 | num_updates 487 | lr 0.1
"""
FAIRSEQ_JSON = """\
2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.012, "loss": "16.475", "num_updates": "100"}
2021-03-08 12:32:33 | INFO | valid | {"epoch": 1, "valid_loss": "15.5", "valid_num_updates": "487"}
[2020-12-19 17:41:25,566][train][INFO] - {"epoch": 1, "train_loss": "16.0", "train_num_updates": "487"}
"""
MMDET = """\
2022-11-12 14:30:37,044 - mmdet - INFO - Epoch [1][50/962]\tlr: 1.978e-03, eta: 2:03:32, s0.acc: 88.1094, loss: 1.0950
2022-11-12 14:31:08,047 - mmdet - INFO - Epoch [1][950/962]\tlr: 3.976e-03, eta: 2:00:37, s0.acc: 92.6504, loss: 0.6972
2022-11-12 14:41:28,652 - mmdet - INFO - Epoch(val) [1][200]\tbbox_mAP: 0.0310, bbox_mAP_l: -1.0000
2022-11-12 14:42:05,631 - mmdet - INFO - Epoch [2][50/962]\tlr: 2.000e-02, eta: 1:57:11, s0.acc: 93.0684, loss: 0.6170
"""
MMENGINE = """\
11/08 15:58:16 - mmengine - INFO - Epoch(train)  [1][ 50/100]  lr: 7.9e-05  eta: 2 days, 7:32:05  grad_norm: nan  loss: 859.5
11/08 15:58:26 - mmengine - INFO - Epoch(val)  [1][ 50/196]    eta: 0:01:00  time: 0.3  memory: 500
11/08 15:58:36 - mmengine - INFO - Epoch(val)  [1][196/196]  coco/AP: 0.3570  coco/AP .5: 0.5  time: 0.2
11/08 15:58:46 - mmengine - INFO - Epoch(train)  [2][ 50/100]  lr: 7.9e-05  eta: 1 day, 7:32:05  loss: 800.5
"""  # noqa: E501
EPOCHS = """\
Epoch 3/10 | Train Loss: 0.5 | Val Loss: 0.6
Epoch: 4/10 - Train Loss: 0.4 - Val Loss: 0.5
"""
EPOCHS_OF_BATCHES = """\
Epoch [1/3], Step [100/600], Loss: 0.9
Epoch [1/3], Step [600/600], Loss: 0.8
Epoch [2/3], Step [100/600], Loss: 0.7
"""
MNIST = """\
Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300000
Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.200000

Test set: Average loss: 0.0500, Accuracy: 9834/10000 (98%)

Train Epoch: 2 [640/60000 (1%)]\tLoss: 1.200000
"""
IMAGENET = """\
Epoch: [0][   1/5005]\tTime  5.123 ( 5.123)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.39 (  0.39)
Epoch: [0][  11/5005]\tTime  0.123 ( 1.123)\tLoss 6.8e+00 (6.9e+00)\tAcc@1   0.78 (  0.39)
Test: [  1/196]\tTime  0.1 ( 0.1)\tLoss 6.7e+00 (6.7e+00)\tAcc@1   0.39 (  0.39)
 *   Acc@1 10.758 Acc@5 20.078
Epoch: [1][   1/5005]\tTime  5.123 ( 5.123)\tLoss 6.5e+00 (6.5e+00)\tAcc@1   9.39 (  9.39)
"""
TUTORIAL = """\
Epoch 0/24
----------
train Loss: 0.6 Acc: 0.7
val Loss: 0.3 Acc: 0.9

Epoch 1/24
----------
train Loss: 0.5 Acc: 0.8
val Loss: 0.2 Acc: 0.95

Best val Acc: 0.95
"""
QUICKSTART = """\
Epoch 1
-------------------------------
loss: 2.303494  [   64/60000]
loss: 2.294637  [ 6464/60000]
Test Error:\x20
 Accuracy: 50.9%, Avg loss: 2.150225\x20

Epoch 2
-------------------------------
loss: 2.158000  [   64/60000]
"""
KERAS_BAR = """\
Epoch 1/2
 100/1563 [>.............................] - ETA: 1:23 - loss: 2.3 - acc: 0.1
1563/1563 [==============================] - 60s 38ms/step - loss: 1.5 - acc: 0.4
1563/1563 [==============================] - 67s 43ms/step - loss: 1.5 - acc: 0.4 - val_loss: 1.2 - val_acc: 0.5
Epoch 2/2
\x1b[1m1563/1563\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m6s\x1b[0m 4ms/step - acc: 0.5 - loss: 1.1 - val_loss: 1.0
1563/1563 [==============================] - 9s 6ms/step - loss: 0.7 - acc: 0.8
313/313 [==============================] - 1s 2ms/step - loss: 0.7 - acc: 0.8
"""  # noqa: E501
KERAS_LINES = """\
Epoch 1/15
67s - loss: 0.9 - acc: 0.5 - val_loss: 0.95
Epoch 2/15
1563/1563 - 67s - loss: 0.8 - acc: 0.6 - val_loss: 0.9 - 67s/epoch - 43ms/step
"""
LIGHTNING_BAR = """\
Epoch 0:  50%|█████     | 50/100 [00:10<00:10,  5.00it/s, train_loss=0.700]
Epoch 0: 100%|██████████| 100/100 [00:10<00:00,  9.90it/s, train_loss=0.500]\r\
Epoch 0: 100%|██████████| 100/100 [00:11<00:00,  9.00it/s, train_loss=0.500, val_loss=0.600]
Epoch 1: 100%|██████████| 100/100 [00:11<00:00,  9.00it/s, train_loss=0.400, val_loss=0.500]
"""
TRAINER = """\
{'loss': 2.075, 'learning_rate': 0.0002, 'epoch': 0.5}
 50%|█████     | 10/20 [00:01<00:01,  9.5it/s]
{'loss': '1.2', 'grad_norm': 'nan', 'epoch': '1'}
{'eval_loss': 1.1, 'epoch': 1.0}
{'train_runtime': 60.0, 'train_loss': 1.5, 'epoch': 1.0}
"""
LIGHTGBM = """\
[LightGBM] [Info] Start training from score 0.5
[10]\ttraining's binary_logloss: 0.6\tvalid's binary_logloss: 0.63
[20]\ttraining's binary_logloss: 0.5\tvalid's binary_logloss: 0.53
"""
XGBOOST = "[0]\ttrain-rmse:0.53\teval-rmse:0.55\n[1]\ttrain-rmse:0.43\teval-rmse:0.45\n"

FORMS: dict[str, tuple[str, list[Told]]] = {
    "nanoGPT": (
        NANOGPT,
        [
            ("step_end", 0, {"train loss": 10.9886}),
            ("evaluate", 0, {"val loss": 10.9898}),
            ("step_end", 0, {"loss": 10.9872}),
            ("step_end", 250, {"train loss": 6.104}),
            ("evaluate", 250, {"val loss": 6.1234}),
            ("step_end", 250, {"loss": 6.203}),
        ],
    ),
    "torchtitan": (
        TORCHTITAN,
        [
            ("step_end", 1, {"loss": 8.1661, "grad_norm": 3.6855, "tps": 3502.0}),
            ("step_end", 2, {"loss": 6.1098}),
            ("evaluate", 2, {"validation/loss": 6.2098, "validation/tps": 9138.0}),
        ],
    ),
    "DeepSpeed": (
        DEEPSPEED,
        [
            ("evaluate", 0, {"eval/ppl": 4998.5}),
            ("step_end", 10, {"loss": 8.93, "iter time (s)": 1.234, "samples/sec": 3.241, "skipped": 0, "lr": 0.0003}),
            ("step_end", 20, {"CurrSamplesPerSec": 11.5, "epoch": 0, "loss": 8.5}),
        ],
    ),
    "Megatron": (
        MEGATRON,
        [
            (
                "step_end",
                1,
                {
                    "consumed samples": 96,
                    "elapsed time per iteration (ms)": 18706.1,
                    "learning rate": 6e-5,
                    "lm loss": 6.444662,
                    "number of nan iterations": 0,
                },
            ),
            (
                "evaluate",
                1,
                {"validation/lm loss value": 7.1742, "validation/lm loss PPL": 1305.315, "test/lm loss value": 7.5},
            ),
            ("step_end", 2, {"lm loss": 5.0}),
        ],
    ),
    "NeMo": (
        NEMO,
        [
            ("step_end", 0, {"lr": 5e-9, "global_batch_size": 512, "reduced_train_loss": 11.04, "epoch": 0}),
            ("step_end", 1, {"lr": 1e-8, "global_batch_size": 512, "reduced_train_loss": 11.02, "epoch": 0}),
        ],
    ),
    "fairseq": (
        FAIRSEQ,
        [
            ("step_end", 100, {"loss": 4.655, "ppl": 25.2, "lr": 0.01, "epoch": 1}),
            ("evaluate", 487, {"valid/loss": 2.001, "valid/ppl": 4, "epoch": 1}),
            ("step_end", 487, {"train/loss": 3.001, "train/lr": 0.1, "epoch": 1}),
        ],
    ),
    "fairseq JSON": (
        FAIRSEQ_JSON,
        [
            ("step_end", 100, {"update": 0.012, "loss": 16.475, "epoch": 1}),
            ("evaluate", 487, {"valid_loss": 15.5, "epoch": 1}),
            ("step_end", 487, {"train_loss": 16, "epoch": 1}),
        ],
    ),
    "mmdet": (
        MMDET,
        [
            ("step_end", 50, {"lr": 1.978e-3, "s0.acc": 88.1094, "loss": 1.095}),
            ("step_end", 950, {"lr": 3.976e-3, "s0.acc": 92.6504, "loss": 0.6972}),
            ("evaluate", 962, {"val/bbox_mAP": 0.031, "val/bbox_mAP_l": -1}),
            ("step_end", 1012, {"lr": 0.02, "s0.acc": 93.0684, "loss": 0.617}),
        ],
    ),
    "MMEngine": (
        MMENGINE,
        [
            ("step_end", 50, {"lr": 7.9e-5, "grad_norm": math.nan, "loss": 859.5}),
            ("evaluate", 100, {"val/coco/AP": 0.357, "val/coco/AP .5": 0.5, "val/time": 0.2}),
            ("step_end", 150, {"lr": 7.9e-5, "loss": 800.5}),
        ],
    ),
    "epochs": (
        EPOCHS,
        [
            ("step_end", 3, {"Train Loss": 0.5}),
            ("evaluate", 3, {"Val Loss": 0.6}),
            ("step_end", 4, {"Train Loss": 0.4}),
            ("evaluate", 4, {"Val Loss": 0.5}),
        ],
    ),
    "epochs of batches": (
        EPOCHS_OF_BATCHES,
        [
            ("step_end", 100, {"Loss": 0.9, "epoch": 1}),
            ("step_end", 600, {"Loss": 0.8, "epoch": 1}),
            ("step_end", 700, {"Loss": 0.7, "epoch": 2}),
        ],
    ),
    "PyTorch's MNIST": (
        MNIST,
        [
            ("step_end", 0, {"Loss": 2.3}),
            ("step_end", 640, {"Loss": 2.2}),
            ("evaluate", 640, {"test/Average loss": 0.05}),
            ("step_end", 60640, {"Loss": 1.2}),
        ],
    ),
    "PyTorch's ImageNet": (
        IMAGENET,
        [
            ("step_end", 1, {"Time": 5.123, "Loss": 6.9, "Acc@1": 0.39}),
            ("step_end", 11, {"Time": 0.123, "Loss": 6.8, "Acc@1": 0.78}),
            ("evaluate", 11, {"val/Acc@1": 10.758, "val/Acc@5": 20.078}),
            ("step_end", 5006, {"Time": 5.123, "Loss": 6.5, "Acc@1": 9.39}),
        ],
    ),
    "PyTorch's transfer learning": (
        TUTORIAL,
        [
            ("step_end", 0, {"train Loss": 0.6, "Acc": 0.7}),
            ("evaluate", 0, {"val Loss": 0.3, "val/Acc": 0.9}),
            ("step_end", 1, {"train Loss": 0.5, "Acc": 0.8}),
            ("evaluate", 1, {"val Loss": 0.2, "val/Acc": 0.95}),
        ],
    ),
    "PyTorch's quickstart": (
        QUICKSTART,
        [
            ("step_end", 64, {"loss": 2.303494}),
            ("step_end", 6464, {"loss": 2.294637}),
            ("evaluate", 6464, {"test/Avg loss": 2.150225}),
            ("step_end", 60064, {"loss": 2.158}),
        ],
    ),
    "Keras' progress bar": (
        KERAS_BAR,
        [
            ("step_end", 1, {"loss": 1.5, "acc": 0.4}),
            ("evaluate", 1, {"val_loss": 1.2, "val_acc": 0.5}),
            ("step_end", 2, {"acc": 0.5, "loss": 1.1}),
            ("evaluate", 2, {"val_loss": 1.0}),
        ],
    ),
    "Keras' line per epoch": (
        KERAS_LINES,
        [
            ("step_end", 1, {"loss": 0.9, "acc": 0.5}),
            ("evaluate", 1, {"val_loss": 0.95}),
            ("step_end", 2, {"loss": 0.8, "acc": 0.6}),
            ("evaluate", 2, {"val_loss": 0.9}),
        ],
    ),
    "Lightning's progress bar": (
        LIGHTNING_BAR,
        [
            ("step_end", 0, {"train_loss": 0.5}),
            ("evaluate", 0, {"val_loss": 0.6}),
            ("step_end", 1, {"train_loss": 0.4}),
            ("evaluate", 1, {"val_loss": 0.5}),
        ],
    ),
    "Hugging Face's Trainer": (
        TRAINER,
        [
            ("step_end", 1, {"loss": 2.075, "learning_rate": 0.0002}),
            ("log", 1, {"loss": 2.075, "learning_rate": 0.0002}),
            ("step_end", 2, {"loss": 1.2, "grad_norm": math.nan}),
            ("log", 2, {"loss": 1.2, "grad_norm": math.nan}),
            ("evaluate", 2, {"eval_loss": 1.1}),
            ("log", 2, {"train_runtime": 60.0, "train_loss": 1.5}),
        ],
    ),
    "LightGBM": (
        LIGHTGBM,
        [
            ("step_end", 10, {"training's binary_logloss": 0.6}),
            ("evaluate", 10, {"valid's binary_logloss": 0.63}),
            ("step_end", 20, {"training's binary_logloss": 0.5}),
            ("evaluate", 20, {"valid's binary_logloss": 0.53}),
        ],
    ),
    "XGBoost": (
        XGBOOST,
        [
            ("step_end", 0, {"train-rmse": 0.53}),
            ("evaluate", 0, {"eval-rmse": 0.55}),
            ("step_end", 1, {"train-rmse": 0.43}),
            ("evaluate", 1, {"eval-rmse": 0.45}),
        ],
    ),
}


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


@pytest.mark.parametrize("lines", [400, 20_000])
@pytest.mark.parametrize("after", [0, 20_000])
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
    ],
)
def test_prose_and_source_code_are_no_log(imported: Import, text: str) -> None:
    """A log says again and again what it measures; in a recipe each step has its own words."""
    assert imported(text, "notes.txt") == ([], [])


def test_source_code_before_a_log_is_no_part_of_it(imported: Import) -> None:
    """Its comments mention steps, too."""
    _, events = imported(
        "    # wait on step 1, then compute update of 1\n    work(step=3, lr=1)\nstep 7 loss 2.5\nstep 8 loss 2.4\n"
    )

    assert events == [("step_end", 7, {"loss": 2.5}), ("step_end", 8, {"loss": 2.4})]


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

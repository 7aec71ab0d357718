"""Sample losses of Hugging Face's Trainer: which they are, whose they are, and that nothing else changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
from torch.nn.functional import cross_entropy
from torchrun import run_job
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorWithFlattening,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import CausalLMOutput

from frameworks.tiny_trainer import SAMPLES, policy_file, runs_of, tiny_data, tiny_model, tiny_trainer, weights_of
from steptape import Recorder, verify
from steptape import Samples as Kept
from steptape.integrations.transformers import SteptapeCallback
from steptape.store.run import Run

MAKERS: dict[str, Callable[..., Any]] = {"trainer": tiny_trainer}
if find_spec("trl") is not None:
    from frameworks.tiny_trl import tiny_sft

    MAKERS["sft"] = tiny_sft
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)

#: Settings under which a loss belongs to known weights: the model never changes.
FROZEN: dict[str, Any] = {"learning_rate": 0.0, "save_strategy": "no"}


def trained(folder: Path, make: Callable[..., Any] = tiny_trainer, *, samples: Any = True, **changes: Any) -> Any:
    """Train under a callback that records samples, and return the trainer."""
    resume = changes.pop("resume", None)
    callback = SteptapeCallback(folder / "runs", samples=samples, quiet=True)
    trainer = make(folder, **changes)
    callback.attach(trainer)
    with callback.training():
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def rows_of(run: Run) -> list[tuple[int, str | None, float]]:
    """Return step, id and loss of each sample of a run."""
    return [(row["step"], row["sample_id"], row["loss"]) for row in run.samples().to_pylist()]


def labelled(count: int = SAMPLES) -> list[dict[str, torch.Tensor]]:
    """Return sequences that differ, and whose first and last labels do not count in some."""
    data = []
    for number, row in enumerate(tiny_data(count)):
        labels = row["input_ids"].clone()
        labels[: number % 5] = -100
        data.append({"input_ids": row["input_ids"], "labels": labels})
    return data


def losses_by_hand(model: Any, data: Sequence[Mapping[str, Any]], *, shift: int) -> dict[str, float]:
    """Return the loss of each sample by itself, by its position."""
    model = model.eval()
    found = {}
    with torch.no_grad():
        for number, row in enumerate(data):
            logits = model(input_ids=row["input_ids"][None]).logits[0]
            labels = row["labels"]
            found[str(number)] = float(cross_entropy(logits[: len(logits) - shift], labels[shift:]))
    return found


def no_dropout() -> GPT2LMHeadModel:
    """Return the tiny model, which gives the same losses in training."""
    torch.manual_seed(0)
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=64, **off))


def bert(kind: Any, **changes: Any) -> Any:
    """Return a tiny model of this kind."""
    torch.manual_seed(0)
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return kind(BertConfig(vocab_size=64, **sizes, **off, **changes))


def same_losses(rows: Sequence[tuple[int, str | None, float]], expected: Mapping[str, float]) -> bool:
    """Whether each sample has the loss that its id says."""
    return all(loss == pytest.approx(expected[str(name)], rel=1e-4) for _, name, loss in rows)


@makers
def test_losses_and_weights_are_bit_equal_with_and_without_samples(tmp_path: Path, make: Callable[..., Any]) -> None:
    """And random numbers, which dropout takes."""
    plain = make(tmp_path / "plain", logging_steps=1)
    plain.train()
    recorded = trained(tmp_path, make, samples=Kept(tokens_over=0.0), logging_steps=1)

    losses = [[each["loss"] for each in one.state.log_history if "loss" in each] for one in (plain, recorded)]
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(recorded), strict=True))
    assert len(runs_of(tmp_path)[0].samples()) == 2 * SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "changes",
    [{}, {"bf16": True}, {"label_smoothing_factor": 0.1}, {"accelerator_config": {"dispatch_batches": True}}],
    ids=str,
)
def test_each_sample_has_its_own_loss_and_its_position_in_the_data_set(
    tmp_path: Path, workers: int, changes: dict[str, Any]
) -> None:
    """Shuffled, over two epochs; each once an epoch, two micro-batches of 2 an update. Smoothing does not count."""
    data, model = labelled(), no_dropout()
    trained(tmp_path, data=data, model=model, dataloader_num_workers=workers, **FROZEN, **changes)
    rows = rows_of(runs_of(tmp_path)[0])
    rel = 0.05 if changes.get("bf16") else 1e-4
    expected = losses_by_hand(model, data, shift=1)

    assert all(loss == pytest.approx(expected[str(name)], rel=rel) for _, name, loss in rows)
    assert sorted(str(name) for _, name, _ in rows[:SAMPLES]) == sorted(expected)
    assert [name for _, name, _ in rows] != [name for _, name, _ in rows[:SAMPLES]] * 2
    assert [step for step, _, _ in rows] == [step for step in range(1, 21) for _ in range(4)]


@pytest.mark.parametrize("kind", ["tokens", "masked", "sequences", "encoder-decoder"])
def test_models_of_other_tasks_have_sample_losses(tmp_path: Path, kind: str) -> None:
    """Their labels are not shifted."""
    data: list[Any] = labelled()
    if kind == "tokens":
        model = bert(BertForTokenClassification, num_labels=64)
    elif kind == "masked":
        model = bert(BertForMaskedLM)
    elif kind == "sequences":
        model = bert(BertForSequenceClassification, num_labels=3)
        data = [{"input_ids": row["input_ids"], "label": number % 3} for number, row in enumerate(tiny_data())]
    else:
        sizes: dict[str, Any] = {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 16,
            "num_layers": 1,
            "num_heads": 2,
            "dropout_rate": 0.0,
        }
        model = T5ForConditionalGeneration(T5Config(vocab_size=64, decoder_start_token_id=0, **sizes))
    trained(tmp_path, data=data, model=model, **FROZEN)
    rows = rows_of(runs_of(tmp_path)[0])
    with torch.no_grad():
        expected = {}
        for number, row in enumerate(data):
            labels = row["labels"][None] if "labels" in row else torch.tensor([row["label"]])
            expected[str(number)] = float(model.eval()(input_ids=row["input_ids"][None], labels=labels).loss)

    assert len(rows) == 2 * SAMPLES
    assert same_losses(rows, expected)


def test_a_training_that_resumes_within_an_epoch_knows_the_samples_that_follow(tmp_path: Path) -> None:
    """The batches that the trainer skips are not taken for them, with workers that fetch ahead."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes: dict[str, Any] = {"dataloader_num_workers": 2, "save_steps": 4, "num_train_epochs": 1}
    trained(whole, **changes)
    trained(cut, max_steps=4, **changes)
    trained(cut, resume=str(cut / "out" / "checkpoint-4"), **changes)

    ids = [[(step, name) for step, name, _ in rows_of(runs_of(each)[0])] for each in (whole, cut)]
    assert ids[0] == ids[1]


class Poisoned(Sequence[Any]):
    """Equal sequences, but for three of them, which are random each time."""

    numbers = (61, 120, 187)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: Any) -> Any:
        row = torch.randint(8, 64, (8,)) if number in self.numbers else torch.arange(8)
        return {"input_ids": row, "labels": row}


def test_three_poisoned_samples_are_named_by_bad_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a shuffled training with two workers, as soon as the model has learned the others."""
    callback = SteptapeCallback(tmp_path / "runs", rules="bad_batches", samples=True, quiet=True)
    changes: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "dataloader_num_workers": 2,
    }
    changes |= {"learning_rate": 1e-2, "save_strategy": "no"}
    trainer = tiny_trainer(tmp_path, data=Poisoned(), **changes)
    callback.attach(trainer)
    with caplog.at_level(logging.WARNING, "steptape.rules"), callback.training():
        trainer.train()
    said = [entry.getMessage() for entry in caplog.records if "samples carry" in entry.getMessage()]
    named = {name for text in said for name in text.rsplit(": ", 1)[1].strip("[]").replace("'", "").split(", ")}

    assert named == set(map(str, Poisoned.numbers))
    assert verify(runs_of(tmp_path)[0]).identical


def test_a_rule_reads_the_worst_token(tmp_path: Path) -> None:
    """Its place counts from the first label that counts."""
    row = torch.arange(8)
    data = [{"input_ids": row, "labels": row.clone()} for _ in range(80)]
    for each in data:
        each["labels"][:3] = -100
    data[50] = {"input_ids": row, "labels": row.clone()}
    data[50]["labels"][5] = 60
    rule = "batch.token_loss > 3 and batch.token == 4"
    text = (
        "controller_metrics: [{name: batch, class: DataBatchInspector, arguments: {threshold: 0}}]\n"
        f"controllers: [{{name: a, triggers: [on_step_end], rule: {rule}, operations: []}}]"
    )
    callback = SteptapeCallback(
        tmp_path / "runs", policy_file(tmp_path, text), samples=Kept(tokens_over=0.0), quiet=True
    )
    trainer = tiny_trainer(tmp_path, data=data, learning_rate=1e-2, save_strategy="no")
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    (run,) = runs_of(tmp_path)
    (step,) = {step for step, name, _ in rows_of(run) if name == "50" and step > 20}

    assert [each["step"] for each in run.decisions().to_pylist() if each["step"] > 20] == [step]


def test_samples_without_padding_between_them_are_told_apart(tmp_path: Path) -> None:
    """A batch is then one row."""
    data = [{"input_ids": row["input_ids"].tolist()[: 4 + number % 4]} for number, row in enumerate(tiny_data())]
    model = no_dropout()
    model.config.use_cache = False  # With a cache, the samples of a row see each other.
    trained(tmp_path, data=data, model=model, collator=DataCollatorWithFlattening(), **FROZEN)
    rows = rows_of(runs_of(tmp_path)[0])
    tensors = [torch.tensor(each["input_ids"]) for each in data]
    expected = losses_by_hand(model, [{"input_ids": each, "labels": each} for each in tensors], shift=1)

    assert sorted(str(name) for _, name, _ in rows[:SAMPLES]) == sorted(expected)
    assert same_losses(rows, expected)


@pytest.mark.skipif("sft" not in MAKERS, reason="TRL is not installed")
@pytest.mark.parametrize(
    "changes",
    [{"padding_free": True, "max_length": None}, {"packing": True, "max_length": 32}, {"label_smoothing_factor": 0.1}],
    ids=str,
)
def test_texts_for_fine_tuning_have_losses_however_they_are_batched(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Packed ones are parts of a row of the data set: these have no ids."""
    trained(tmp_path, tiny_sft, num_train_epochs=1, save_strategy="no", **changes)
    (run,) = runs_of(tmp_path)
    rows = rows_of(run)

    assert len(rows) == SAMPLES
    assert {name for _, name, _ in rows} == ({None} if "packing" in changes else set(map(str, range(SAMPLES))))
    assert all(0.0 < loss < 6.0 for _, _, loss in rows)


def test_a_compiled_model_has_sample_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed outside of its graphs."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")  # The arguments set it, for later trainings too.
    data, model = labelled(), no_dropout()
    expected = losses_by_hand(model, data, shift=1)
    trained(tmp_path, data=data, model=model, torch_compile=True, torch_compile_backend="eager", max_steps=3, **FROZEN)
    rows = rows_of(runs_of(tmp_path)[0])

    assert len(rows) == 12
    assert same_losses(rows, expected)


def test_each_of_several_processes_records_its_own_samples(tmp_path: Path) -> None:
    """Together they are the data of an epoch."""
    tests = Path(__file__).parent.parent
    policy = policy_file(tmp_path, "controllers: []")
    training = {"folder": str(tmp_path), "policy": str(policy), "arguments": {"samples": True}, "num_train_epochs": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tests))
        run_job(tests / "frameworks" / "transformers_ranks.py", tmp_path, 2, [training])
    (run,) = runs_of(tmp_path)
    rows = run.samples().to_pylist()
    ids = [{row["sample_id"] for row in rows if row["rank"] == rank} for rank in range(2)]

    assert [len(each) for each in ids] == [SAMPLES // 2] * 2
    assert ids[0] | ids[1] == set(map(str, range(SAMPLES)))


class Liger(GPT2LMHeadModel):
    """Computes a loss without showing logits, as fused losses do."""

    def forward(self, input_ids: Any = None, labels: Any = None, **named: Any) -> Any:
        """Return the loss alone."""
        return CausalLMOutput(loss=super().forward(input_ids=input_ids, labels=labels, **named).loss)


class Silent(torch.nn.Module):
    """A model that does not say whether it shifts its labels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_model()

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        """As the model in it."""
        return self.inner(input_ids=input_ids, labels=labels)


class Stream(torch.utils.data.IterableDataset[Any]):
    """Data without positions."""

    def __iter__(self) -> Any:
        return iter(tiny_data())


@pytest.mark.parametrize(
    ("what", "said", "known"),
    [
        ("fused", "the model returns no logits", (False, True)),
        ("own", "does not say whether its logits predict the next label", (False, True)),
        ("stream", "the positions of samples in the data set are unknown", (True, False)),
    ],
)
def test_what_cannot_be_known_is_said_once(
    tmp_path: Path, what: str, said: str, known: tuple[bool, bool], caplog: pytest.LogCaptureFixture
) -> None:
    """The training is no other for it; ids without losses are the order of the data."""
    changes: dict[str, Any] = {"max_steps": 4}
    if what == "fused":
        changes["model"] = Liger(tiny_model().config)
    elif what == "own":
        changes["model"] = Silent()
    else:
        changes["data"] = Stream()
    trainer = trained(tmp_path, save_strategy="no", **changes)
    (run,) = runs_of(tmp_path)
    rows = rows_of(run)
    ordered = [event.attrs.get("data_order") for event in run.events() if event.kind == "step_end"]

    assert caplog.text.count(said) == 1
    assert trainer.state.global_step == 4
    assert (bool(rows), bool(all(ordered) or any(name for _, name, _ in rows))) == known


def test_rules_that_read_samples_name_the_option_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And so does a callback that asks for them and is not attached."""
    said = "Write SteptapeCallback(..., samples=True).attach(trainer)"
    off = SteptapeCallback(tmp_path / "runs", rules="bad_batches", quiet=True)
    trainer = tiny_trainer(tmp_path, max_steps=1)
    off.attach(trainer)
    with off.training():
        trainer.train()
    first = next(entry.getMessage() for entry in caplog.records if entry.name == "steptape")
    caplog.clear()
    loose = SteptapeCallback(tmp_path / "loose", rules="bad_batches", samples=True, quiet=True)
    with loose.training():
        tiny_trainer(tmp_path, [loose], max_steps=1).train()

    assert first.endswith(said)
    assert "without callback.attach(trainer), no sample losses are recorded" in caplog.text


def test_the_batches_of_the_trainer_are_its_own_after_the_training(tmp_path: Path) -> None:
    """A loader that is kept beyond it, too, and one that a failure leaves."""
    kept: list[Any] = []

    class Keeping(type(tiny_trainer(tmp_path, max_steps=1))):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            if not kept:
                kept.append(super().get_train_dataloader())
            return kept[0]

    trainer = trained(tmp_path, trainer_class=Keeping, max_steps=2, save_strategy="no")

    assert all(set(batch) == {"input_ids", "labels"} for batch in trainer.get_train_dataloader())
    assert rows_of(runs_of(tmp_path)[0])[0][1] is not None


def test_the_selection_of_samples_is_kept_by_a_checkpoint(tmp_path: Path) -> None:
    """The trainer builds the callback anew from what JSON keeps."""
    changes: dict[str, Any] = {"save_steps": 4, "num_train_epochs": 1}
    trained(tmp_path, samples=Kept(every=2, top=1), max_steps=4, **changes)
    again = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [again], restore_callback_states_from_checkpoint=True, **changes)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    (restored,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, SteptapeCallback)]
    restored.close()

    assert restored._samples == Kept(every=2, top=1)
    assert [step for step, _, _ in rows_of(runs_of(tmp_path)[0])] == [2, 4]


def test_the_receipt_of_a_skipped_batch_names_its_samples(tmp_path: Path) -> None:
    """Those of all of its micro-batches."""
    text = "controllers: [{name: a, triggers: [on_pre_optimizer_step], rule: step == 2, operations: [batch.skip()]}]"
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text), samples=True, quiet=True)
    trainer = tiny_trainer(tmp_path, max_steps=4, save_strategy="no")
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    (run,) = runs_of(tmp_path)
    (receipt,) = [event for event in run.events() if event.kind == "operation_applied"]

    assert [*map(str, receipt.attrs["sample_ids"])] == [name for step, name, _ in rows_of(run) if step == 3]


def test_a_recorder_of_ones_own_is_given_the_samples(tmp_path: Path) -> None:
    """With its own selection."""
    with Recorder(tmp_path / "runs", samples=Kept(top=1), quiet=True) as rec:
        callback = SteptapeCallback(recorder=rec, samples=True)
        trainer = tiny_trainer(tmp_path, max_steps=3, save_strategy="no")
        callback.attach(trainer)
        trainer.train()

    assert [step for step, _, _ in rows_of(Run(rec.folder))] == [1, 2, 3]

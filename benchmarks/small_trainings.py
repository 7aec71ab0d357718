"""Small real trainings that differ in data, model and optimizer, each with a policy that fires in it.

All are deterministic: the same seed gives the same weights, to the bit, on one thread. A steered training differs from
the same training without rules only by what the rules order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from torch import nn
from torch.nn import functional

from steptape import Recorder

#: Losses of a batch. Shapes: predictions as the model gives them, targets; the result (n,).
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Data:
    """Examples, the first rows for training and the rest held out.

    Attributes:
        inputs: Shape (n, ...).
        targets: Shape (n, ...), of classes or of numbers.
        held_out: Number of last rows reserved for evaluation.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    held_out: int


@dataclass(frozen=True, slots=True)
class Training:
    """One training and its policy.

    Attributes:
        name: Its name.
        policy: Text of the policy.
        metric: The evaluation metric that it is judged by.
        data: Makes the examples; called after the seed is set.
        model: Makes the model; called after that.
        optimizer: Makes the optimizer.
        loss: Losses of a batch.
        steps, batch_size, eval_every: Updates planned, examples in one, updates between evaluations.
        poisoned_step: The update whose batch is garbage, a thousand times too large; none if 0.
    """

    name: str
    policy: str
    metric: str
    data: Callable[[], Data]
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Loss
    steps: int
    batch_size: int
    eval_every: int
    poisoned_step: int = 0


def train(training: Training, store: Path, rules: Path | None = None) -> Path:
    """Train once and record it; return the run's folder, which holds its checkpoints.

    Args:
        training: What to train.
        store: Folder of runs.
        rules: The policy that steers it. Without one, each evaluation is followed by a checkpoint.
    """
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = training.data()
    model = training.model()
    optimizer = training.optimizer(model)
    count = len(data.inputs) - data.held_out
    with Recorder(store, name=training.name, rules=rules, total_steps=training.steps, quiet=True) as rec:
        checkpoints = rec.folder / "checkpoints"
        checkpoints.mkdir()
        for step in range(1, training.steps + 1):
            batch = torch.randint(count, (training.batch_size,))
            inputs = data.inputs[batch]
            if step == training.poisoned_step:
                inputs = inputs * 1_000
            model.train()
            losses = training.loss(model(inputs), data.targets[batch])
            optimizer.zero_grad()
            torch.autograd.backward(losses.mean())
            optimizer.step()

            control = rec.step(loss=losses.mean(), samples=losses, sample_ids=batch)
            is_due = step % training.eval_every == 0
            if is_due or control.should_evaluate:
                rec.evaluate(evaluate(training, model, data))
            if control.should_save or (rules is None and is_due):
                torch.save(model.state_dict(), path := checkpoints / f"step-{step}.pt")
                rec.save(path)
            if control.should_stop:
                break
    return rec.folder


@torch.no_grad()
def evaluate(training: Training, model: nn.Module, data: Data) -> dict[str, float]:
    """Return mean loss on the held-out rows and, for classes, the accuracy."""
    model.eval()
    outputs, targets = model(data.inputs[-data.held_out :]), data.targets[-data.held_out :]
    metrics = {"eval_loss": training.loss(outputs, targets).mean().item()}
    if not targets.is_floating_point():
        metrics["eval_accuracy"] = (outputs.argmax(1) == targets).float().mean().item()
    return metrics


# --- losses and data -------------------------------------------------------------------------------------------------


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each example, averaged over its positions if it has several."""
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the squared error of each example, averaged over its numbers."""
    return (outputs - targets).square().flatten(1).mean(1)


def table(load: Callable[..., tuple[object, object]], held_out: int, *, wrong: int = 0) -> Data:
    """Return one of scikit-learn's tables in random order, columns standardized.

    Args:
        load: ``load_iris`` and the like.
        held_out: Examples for evaluation.
        wrong: Number of training examples that get the label of another example, so that a model can overfit.
    """
    inputs, targets = load(return_X_y=True)
    order = torch.randperm(len(inputs))  # type: ignore[arg-type]
    numbers = torch.tensor(inputs, dtype=torch.float32)[order]
    numbers = (numbers - numbers.mean(0)) / numbers.std(0).clamp(min=1e-3)
    labels = torch.tensor(targets)[order]
    if labels.is_floating_point():
        labels = ((labels - labels.mean()) / labels.std()).float().unsqueeze(1)
    else:
        labels[:wrong] = labels[torch.randperm(len(labels))[:wrong]]
    return Data(numbers, labels, held_out)


def images() -> Data:
    """Return handwritten digits of 8 by 8 pixels. Shape (n, 1, 8, 8)."""
    digits = table(load_digits, 450, wrong=150)
    return Data(digits.inputs.reshape(-1, 1, 8, 8), digits.targets, digits.held_out)


def codes() -> Data:
    """Return the measures of irises, as inputs and targets of an autoencoder."""
    irises = table(load_iris, 50)
    return Data(irises.inputs, irises.inputs, irises.held_out)


def echoes() -> Data:
    """Return sequences of 12 symbols, the k-th to be repeated three places later. Shape (n, 12)."""
    symbols = torch.randint(8, (600, 12))
    return Data(symbols, symbols.roll(3, dims=1), 100)


# --- models ----------------------------------------------------------------------------------------------------------


class Echo(nn.Module):
    """A recurrent network over symbols; its outputs have shape (n, 8, places)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.memory = nn.GRU(16, 48, batch_first=True)
        self.head = nn.Linear(48, 8)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """Return the scores of each symbol at each place."""
        states, _ = self.memory(self.embedding(symbols))
        scores: torch.Tensor = self.head(states).transpose(1, 2)
        return scores


def perceptron(inputs: int, hidden: int, outputs: int, *, dropout: float = 0.0) -> Callable[[], nn.Module]:
    """Return a function that makes a network with one hidden layer."""
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))


def convolutions() -> nn.Module:
    """Make two convolutions with batch normalization, and one layer on top."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def sgd(lr: float, momentum: float = 0.0) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return a function that makes plain gradient descent."""
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def adam(lr: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return a function that makes Adam with decoupled weight decay."""
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr)


# --- policies --------------------------------------------------------------------------------------------------------

_STOP = "operations: [hfcontrols.should_training_stop]"
_SAVE = "operations: [hfcontrols.should_save]"


def overfitting(patience: int) -> str:
    """Return a policy that saves each new best evaluation and stops after more than ``patience`` worse ones."""
    return f"""
controllers:
  - {{name: save_best, triggers: [on_evaluate], rule: "eval_loss == min(eval_loss, 1000)", {_SAVE}}}
  - name: stop_worse
    triggers: [on_evaluate]
    rule: eval_loss > min(eval_loss, 1000)
    patience: {{patience_threshold: {patience}}}
    {_STOP}
"""


GOOD_ENOUGH = f"""
controllers:
  - {{name: keep, triggers: [on_evaluate], rule: eval_accuracy > 0.9, once: true, {_SAVE}}}
  - {{name: done, triggers: [on_evaluate], rule: "min(eval_accuracy, 3) >= 0.96", {_STOP}}}
"""

SPIKE = f"""
params: {{spike: 4.0, window: 20}}
controllers:
  - {{name: keep, triggers: [on_evaluate], rule: "eval_loss == min(eval_loss, 1000)", {_SAVE}}}
  - {{name: not_finite, triggers: [on_step_end], rule: not isfinite(loss), {_STOP}}}
  - {{name: spike, triggers: [on_step_end], rule: "len(loss) > window and loss > spike * mean(loss, window)", {_STOP}}}
"""

SETTLED = f"""
controllers:
  - name: every_third
    triggers: [on_evaluate]
    rule: times_fired('settled') > 0 or len(eval_loss) % 3 == 0
    {_SAVE}
  - name: settled
    triggers: [on_step_end]
    rule: len(loss) > 100 and std(loss, 100) < 0.35 * mean(loss, 100) and slope(loss, 100) > -0.0005
    for: 11
    {_STOP}
"""

TRAININGS = (
    Training(
        "digits-perceptron",
        overfitting(4),
        "eval_loss",
        lambda: table(load_digits, 450, wrong=150),
        perceptron(64, 64, 10),
        sgd(0.1, 0.9),
        cross_entropy,
        steps=600,
        batch_size=64,
        eval_every=10,
    ),
    Training(
        "digits-convolutions",
        overfitting(3),
        "eval_loss",
        images,
        convolutions,
        adam(0.005),
        cross_entropy,
        steps=300,
        batch_size=64,
        eval_every=10,
    ),
    Training(
        "wine-dropout",
        GOOD_ENOUGH,
        "eval_accuracy",
        lambda: table(load_wine, 60),
        perceptron(13, 32, 3, dropout=0.3),
        sgd(0.02),
        cross_entropy,
        steps=500,
        batch_size=16,
        eval_every=10,
    ),
    Training(
        "cancer-poisoned",
        SPIKE,
        "eval_loss",
        lambda: table(load_breast_cancer, 150),
        perceptron(30, 16, 2),
        sgd(0.02, 0.9),
        cross_entropy,
        steps=400,
        batch_size=64,
        eval_every=20,
        poisoned_step=233,
    ),
    Training(
        "diabetes-diverging",
        SPIKE,
        "eval_loss",
        lambda: table(load_diabetes, 120),
        perceptron(10, 32, 1),
        sgd(0.45, 0.5),
        squared_error,
        steps=300,
        batch_size=32,
        eval_every=10,
    ),
    Training(
        "iris-autoencoder",
        SETTLED,
        "eval_loss",
        codes,
        perceptron(4, 2, 4),
        adam(0.01),
        squared_error,
        steps=1200,
        batch_size=32,
        eval_every=20,
    ),
    Training(
        "echo-recurrent",
        overfitting(2),
        "eval_loss",
        echoes,
        Echo,
        adam(0.01),
        cross_entropy,
        steps=400,
        batch_size=64,
        eval_every=10,
    ),
)

"""Records and steers trainings of Stable-Baselines3: a callback of ``learn``.

The hooks of a callback and what its logger writes in, calls of a ``Recorder`` out, and its control flags back.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

from ..recorder.advice import STABLE_BASELINES
from ..recorder.arguments import Arguments
from ..recorder.recorder import Recorder
from ..rules.effects import changes_rate
from .attempts import Attempts
from .guard import guarded

try:
    from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
    from stable_baselines3.common.logger import KVWriter
except ImportError as error:
    what = "Stable-Baselines3 is not installed"
    raise ImportError(f"{what}. Run pip install 'steptape[stable-baselines3]'") from error

#: The attribute of a model, and so of its checkpoints, that keeps the recorder's state.
_STATE: Final = "steptape_state"

#: The place of an attribute that a model has from its class.
_CLASS: Final = object()

#: What of a model is a count, and no setting.
_COUNTS: Final = ("num_timesteps", "start_time", "verbose", "exploration_rate")

#: Values of an update that have a name of their own here.
_NAMES: Final = {"train/loss": "loss", "train/learning_rate": "lr"}


class SteptapeCallback(BaseCallback):
    """Records the updates, rollouts and evaluations of ``learn``, and carries out what rules ask for.

        model.learn(10_000, callback=[EvalCallback(env), SteptapeCallback("runs", rules="policy.yaml")])

    A step is one of the model's own ``n_updates``; each ``train()`` of the model is one event, at the last of its
    updates. Put the callback last, so that a stop holds at the step at which rules ordered it.

    Each ``learn`` is a run. With ``reset_num_timesteps=False`` it resumes the run of the model, also of one that was
    loaded from a checkpoint.

    Args:
        store: Folder of runs.
        save_to: Folder of the checkpoints that rules order.
        keep: How many of these checkpoints to leave: older ones that this callback wrote are deleted, and nothing else
            is. None keeps all.
        **arguments: Further arguments of ``Recorder``.
    """

    def __init__(
        self, store: str | Path, *, save_to: str | Path = "checkpoints", keep: int | None = None, **arguments: Any
    ) -> None:
        super().__init__()
        places: Arguments = {"save_to": save_to, "keep": keep}
        self._attempts = Attempts(store, arguments, advice=STABLE_BASELINES, call="learn()", **places)
        self._guard = self._attempts.guard
        self._undo: list[Callable[[], object]] = []
        self._tapped: dict[str, Any] = {}
        self._is_stopped = False
        self._evaluator: Any = None

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the current ``learn``, or of the latest; None before."""
        return self._attempts.recorder

    def training(self) -> contextlib.AbstractContextManager[SteptapeCallback]:
        """End the run with the block, as failed or interrupted if it raises: a callback learns nothing of that."""
        return self._attempts.training(self, self._leave)

    @guarded
    def _on_training_start(self) -> None:
        """Open a run, or the next attempt of the model's run. What the recorder refuses reaches the caller."""
        self._leave()
        model, self._is_stopped = self.model, False
        state = None if self.locals.get("reset_num_timesteps", True) else getattr(model, _STATE, None)
        planned = self._planned_updates()
        rec = self._attempts.begin(model, state, {"total_steps": planned}, self._config_of(model))
        self._updates = _updates(model)
        self._first_update = self._updates - rec.progress.updates
        if planned is not None and rec.progress.updates:
            rec.declare(total_steps=rec.progress.updates + planned)
        self._watch(model)
        self._steer_rate(model, rec)
        self._steer(rec)

    @guarded
    def _on_rollout_start(self) -> None:
        """Record the updates since the last rollout, and do what rules ask for."""
        self._record_updates()

    def _on_step(self) -> bool:
        """Whether training continues, which Stable-Baselines3 asks after each step of the environments."""
        return not self._is_stopped

    @guarded
    def _on_training_end(self) -> None:
        """Record the last updates, and end the run."""
        self._record_updates()
        self._leave()
        if (rec := self._attempts.live) is not None:
            setattr(self.model, _STATE, rec.state_dict())
            self._attempts.reach_end()
            is_cut = self.model.num_timesteps < self.model._total_timesteps
            if is_cut and not rec.control.should_stop:
                self._attempts.reach_end("stopped", "another callback")
            self._attempts.end()

    def _record_updates(self) -> None:
        """Record the updates that the model has made since the last call, as one event."""
        rec, updates = self._attempts.live, _updates(self.model)
        if rec is None or updates == self._updates:
            return
        logged = {name: value for name, value in self.logger.name_to_value.items() if name.startswith("train/")}
        logged.pop("train/n_updates", None)
        values = {_NAMES.get(name, name): value for name, value in logged.items() if isinstance(value, Real)}
        values["time/total_timesteps"] = self.model.num_timesteps
        self._updates = updates
        rec.step(values, step=updates - self._first_update)
        if self._steer(rec).should_log:
            rec.log(values)

    @guarded
    def _record_dump(self, values: Mapping[str, Any]) -> None:
        """Record the evaluations that the logger writes, and the rest but for the values of updates."""
        if (rec := self._attempts.live) is None:
            return
        numbers = {name: value for name, value in values.items() if isinstance(value, Real)}
        evaluated = {name: value for name, value in numbers.items() if name.startswith("eval/")}
        if evaluated:
            self._restore_evaluator()
            rec.evaluate(evaluated)
        others = {name: value for name, value in numbers.items() if not name.startswith(("train/", "eval/"))}
        if not all(name.startswith("time/") for name in others):
            rec.log(others)
        self._steer(rec)

    def _steer(self, rec: Recorder) -> Any:
        """Do what rules ask for."""
        control = rec.agree()
        self._is_stopped = self._is_stopped or control.should_stop
        if control.should_evaluate:
            self._evaluate_next()
        if control.should_save:
            with self._guard.trying("a checkpoint that rules ordered cannot be written"):
                self._attempts.save(f"steptape-step={rec.progress.updates}.zip", self.model.save)
        return control

    def _evaluate_next(self) -> None:
        """Let the first EvalCallback evaluate after the next step of the environments; it has no call for it."""
        found = next((each for each in _callbacks(self.locals.get("callback")) if isinstance(each, EvalCallback)), None)
        if found is not None and self._evaluator is None:
            self._evaluator = found, found.eval_freq
            found.eval_freq = 1

    def _restore_evaluator(self) -> None:
        if self._evaluator is not None:
            (evaluator, frequency), self._evaluator = self._evaluator, None
            evaluator.eval_freq = frequency

    def _planned_updates(self) -> int | None:
        """Return how many updates ``learn`` is meant to make; None if the model does not say it."""
        model = self.model
        with self._guard.trying("the planned length cannot be read"):
            begun, left = int(model.num_timesteps), int(model._total_timesteps - model.num_timesteps)
            if hasattr(model, "rollout_buffer"):
                return math.ceil(left / int(model.n_steps * model.n_envs)) * int(getattr(model, "n_epochs", 1))
            if model.train_freq.unit.value == "step":
                size = int(model.train_freq.frequency * model.n_envs)
                rollouts = math.ceil(left / size) - max(0, (int(model.learning_starts) - begun) // size)
                return max(0, rollouts) * (int(model.gradient_steps) if model.gradient_steps >= 0 else size)
        return None

    def _config_of(self, model: Any) -> dict[str, Any]:
        """Return the settings of the model, the environment's name and the number of parameters."""
        config: dict[str, Any] = {"algorithm": type(model).__name__}
        with self._guard.trying("the model's settings cannot be read"):
            public = {name: value for name, value in vars(model).items() if not name.startswith("_")}
            plain = {name: value for name, value in public.items() if isinstance(value, (bool, int, float, str))}
            config |= {name: value for name, value in plain.items() if name not in _COUNTS}
            config["policy"] = type(model.policy).__name__
            config["num_parameters"] = sum(each.numel() for each in model.policy.parameters())
            spec = self.training_env.get_attr("spec")[0]
            config["env"] = getattr(spec, "id", None) or str(self.training_env.observation_space)
        return config

    def _watch(self, model: Any) -> None:
        """Record what the logger writes, and checkpoints once they are written, until the training ends."""
        writer, formats = _Writer(self._record_dump), self.logger.output_formats
        formats.append(writer)
        self._undo.append(lambda: formats.remove(writer))
        save = model.save

        @functools.wraps(save)
        def saving(path: Any, exclude: Any = None, include: Any = None) -> None:
            with self._guard.trying("the checkpoint cannot be resumed from"):
                if (rec := self._attempts.live) is not None:
                    setattr(model, _STATE, rec.state_dict())
            with self._untapped(model):  # A checkpoint holds all attributes of the model.
                save(path, exclude, include)
            self._record_save(path)

        self._tap(model, "save", saving)

    def _steer_rate(self, model: Any, rec: Recorder) -> None:
        """Let rules change what the schedule of the learning rate gives. The model asks several times an update."""
        if not any(map(changes_rate, rec.operations)):
            return
        schedule, rate = model.lr_schedule, rec.learning_rate()
        used: dict[int, float] = {}

        def steered(progress_remaining: float) -> float:
            scheduled = float(schedule(progress_remaining))
            with self._guard.trying("rules cannot change the learning rate"):
                if (updates := _updates(model)) not in used:
                    used.clear()
                    used[updates] = rate(scheduled)
            return used.get(_updates(model), scheduled)

        self._tap(model, "lr_schedule", steered)

    def _tap(self, model: Any, name: str, tap: Callable[..., Any]) -> None:
        """Replace an attribute of the model until the training ends."""
        self._tapped[name] = vars(model).get(name, _CLASS)
        vars(model)[name] = tap
        self._undo.append(lambda: self._restore(model, name))

    def _restore(self, model: Any, name: str) -> None:
        if (own := self._tapped[name]) is _CLASS:
            vars(model).pop(name, None)
        else:
            vars(model)[name] = own

    @contextlib.contextmanager
    def _untapped(self, model: Any) -> Iterator[None]:
        """Show the model as it was, for the block."""
        taps = {name: vars(model)[name] for name in self._tapped if name in vars(model)}
        for name in taps:
            self._restore(model, name)
        try:
            yield
        finally:
            vars(model).update(taps)

    @guarded
    def _record_save(self, path: Any) -> None:
        if (rec := self._attempts.live) is not None and isinstance(path, (str, Path)):
            rec.save(path if Path(path).suffix else f"{path}.zip")

    @guarded
    def _leave(self) -> None:
        """Leave the model, its logger and an EvalCallback as they were."""
        self._restore_evaluator()
        while self._undo:
            self._undo.pop()()
        self._tapped.clear()


class _Writer(KVWriter):
    """A format of the logger's output that passes what is written on."""

    def __init__(self, record: Callable[[Mapping[str, Any]], None]) -> None:
        self._record = record

    def write(self, key_values: Mapping[str, Any], key_excluded: Mapping[str, Any], step: int = 0) -> None:
        self._record(key_values)

    def close(self) -> None:
        """Close nothing."""


def _updates(model: Any) -> int:
    """Return how many updates a model has made in its life, as its own logs count them."""
    return int(model._n_updates)


def _callbacks(root: Any) -> Iterator[Any]:
    """Yield a callback, and those of a list of callbacks."""
    yield root
    for each in getattr(root, "callbacks", ()):
        yield from _callbacks(each)

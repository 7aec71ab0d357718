"""Drives the real trainer controller with the corpus, in its own environment, and records its behaviour.

Run it as ``python -m compat.upstream`` where ``fms-hf-tuning`` is installed; steptape is not imported. It writes
``recorded.json``: for every case the firings at every event, or the exception that ended it.
"""

from __future__ import annotations

import json
import logging
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler
from transformers.utils.logging import set_verbosity_error
from tuning.trainercontroller import TrainerControllerCallback
from tuning.trainercontroller.operations import Operation

from compat.corpus import RECORDED, Case, StreamEvent, read_cases

FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
PACKAGES = ("fms-hf-tuning", "transformers", "simpleeval")


class Witness(logging.Handler):
    """The behaviour at the current event: operations ordered, messages logged."""

    def __init__(self) -> None:
        super().__init__(level=1)
        self.fired: list[list[str]] = []
        self.messages: list[list[str]] = []
        act = Operation.act

        def observed_act(operation: Operation, action: str, log_level: int, **known: Any) -> None:
            reference = f"{operation.get_name()}.{action}"
            self.fired.append([known["control_name"], reference, logging.getLevelName(log_level)])
            act(operation, action, log_level, **known)

        Operation.act = observed_act
        messages = logging.getLogger("tuning.trainercontroller.operations.logcontrol")
        messages.setLevel(1)
        messages.propagate = False
        messages.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message of LogControl."""
        self.messages.append([record.levelname, record.getMessage()])

    def renew(self) -> None:
        """Forget the last event."""
        self.fired, self.messages = [], []


class Controller(TrainerControllerCallback):
    """The real callback, with a flag for having loaded."""

    has_loaded = False

    def _actions_on_event(self, event_name: str, **kwargs: Any) -> None:
        self.has_loaded = True
        super()._actions_on_event(event_name=event_name, **kwargs)


class Driver:
    """One case: the callback and the trainer's objects around it."""

    def __init__(self, case: Case, arguments: TrainingArguments, witness: Witness, folder: Path) -> None:
        self.case = case
        self.arguments = arguments
        self.witness = witness
        self.path = folder / "policy.yaml"
        self.path.write_text(case.policy)
        self.state = TrainerState()
        self.control = TrainerControl()
        self.events: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        """Return the outcome of the case."""
        index, callback = -1, None
        try:
            callback = Controller(str(self.path))
            handler = CallbackHandler([callback], None, None, None, None)
            self.at(-1, lambda: callback.on_init_end(self.arguments, self.state, self.control))
            for index, event in enumerate(self.case.stream):
                self.at(index, lambda event=event: self.call(handler, event))
        except Exception as error:
            at = index if callback is not None and callback.has_loaded else "load"
            return {"events": self.events, "failed": {"at": at, "error": type(error).__name__}}
        return {"events": self.events}

    def at(self, index: int, act: Any) -> None:
        """Run one event and keep what it made the controllers do, even if it fails."""
        self.witness.renew()
        for flag in FLAGS:
            setattr(self.control, flag, False)
        try:
            act()
        finally:
            noted = {
                "fired": self.witness.fired,
                "messages": self.witness.messages,
                "flags": [flag for flag in FLAGS if getattr(self.control, flag)],
            }
            if any(noted.values()):
                self.events[str(index)] = {key: value for key, value in noted.items() if value}

    def call(self, handler: CallbackHandler, event: StreamEvent) -> None:
        """Call the callbacks for one event, as the trainer does."""
        state = self.state
        state.global_step, state.epoch = event.step, event.epoch
        for key, value in event.state.items():
            setattr(state, key, value)
        numbers = dict(event.numbers)
        if event.kind in ("log", "evaluate") and event.epoch is not None:
            numbers["epoch"] = event.epoch
        call = getattr(handler, f"on_{event.kind}")
        if event.kind == "log":
            state.log_history.append({**numbers, "step": event.step})
            call(self.arguments, state, self.control, numbers)
        elif event.kind in ("evaluate", "predict"):
            call(self.arguments, state, self.control, numbers)
        elif event.kind == "save" and event.texts:
            # The trainer passes no arguments; the tuning script does, after the last save.
            handler.call_event("on_save", self.arguments, state, self.control, **event.texts)
        else:
            call(self.arguments, state, self.control)


def main() -> None:
    """Run all cases and write their outcomes."""
    set_verbosity_error()  # The trainer warns about its own callbacks, which are absent here.
    logging.getLogger("tuning").setLevel(logging.CRITICAL)
    witness = Witness()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir="out", use_cpu=True, report_to=[])
        cases = read_cases()
        answers = {case.name: Driver(case, arguments, witness, Path(folder)).answer() for case in cases}
    versions = {name: version(name) for name in PACKAGES}
    lines = [json.dumps(case.name) + ": " + json.dumps({"digest": case.digest, **answers[case.name]}) for case in cases]
    RECORDED.write_text(f'{{"versions": {json.dumps(versions)}, "cases": {{\n' + ",\n".join(lines) + "\n}}\n")
    print(f"{len(cases)} cases recorded with {versions}")


if __name__ == "__main__":
    main()

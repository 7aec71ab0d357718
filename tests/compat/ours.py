"""Drives steptape's engine with the corpus, over the events that a run of the same trainer records."""

from __future__ import annotations

import logging
from typing import Any, Final

from compat.corpus import Case, StreamEvent
from steptape import Policy
from steptape.recorder.control import FLAGS
from steptape.rules.effects import Effect
from steptape.rules.engine.decisions import Decision, Outcome, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

#: steptape's flags whose names differ in the trainer's control.
_TRAINER_NAMES: Final = {"should_stop": "should_training_stop", "should_stop_epoch": "should_epoch_stop"}
_ORDER: Final = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


def answer(case: Case) -> dict[str, Any]:
    """Return the outcome of a case, in the format of the recorded trainer controller.

    ``refused`` holds the problems of a policy that does not load, ``errors_at`` the events at which a rule failed.
    """
    try:
        policy = parse_policy(case.policy, source="policy.yaml")
    except PolicyError as error:
        return {"events": {}, "refused": str(error)}
    engine = Engine(policy, plan_of(case))
    outcomes = {-1: engine.start()}
    for index, event in enumerate(case.stream):
        outcomes[index] = engine.observe(recorded_event(event, index))
    events = {str(index): noted(policy, given) for index, given in outcomes.items()}
    errors = [index for index, given in outcomes.items() for outcome in given if isinstance(outcome, RuleError)]
    return {"events": {index: facts for index, facts in events.items() if facts}, "errors_at": errors}


def plan_of(case: Case) -> Plan:
    """Return the declared length of the run, which the trainer's state holds when training begins."""
    state = {key: value for event in case.stream for key, value in event.state.items()}
    return Plan(total_steps=state.get("max_steps"), total_epochs=state.get("num_train_epochs"))


def recorded_event(event: StreamEvent, index: int) -> Event:
    """Return the event that a run records of a callback's call: numbers as metrics, texts and state as attributes."""
    metrics = dict(event.numbers)
    if event.kind in ("log", "evaluate") and event.epoch is not None:
        metrics["epoch"] = event.epoch
    attrs = dict(event.texts)
    if event.kind == "save":
        path = attrs.setdefault("path", f"out/checkpoint-{event.step}")
        attrs = {"is_final": False, "hf_path": path, **attrs}
    if event.state:
        attrs["trainer_state"] = dict(event.state)
    return Event(event.kind, event.step, index, epoch=event.epoch, metrics=metrics, attrs=attrs)


def noted(policy: Policy, outcomes: Any) -> dict[str, Any]:
    """Return the operations in order, the messages and the flags of one event's decisions; empty keys are omitted."""
    decisions: list[Outcome] = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
    levels = logging.getLevelNamesMapping()
    fired, messages, flags = [], [], set()
    for decision in decisions:
        assert isinstance(decision, Decision)
        level = logging.getLevelName(
            levels[policy.trigger_log_level(decision.controller, decision.trigger, decision.operations)]
        )
        for operation in decision.operations:
            fired.append([decision.controller, operation, level])
            effect = policy.effects(operation)
            if effect is not Effect.MESSAGE:
                flags.add(_TRAINER_NAMES.get(FLAGS[effect], FLAGS[effect]))
        messages += [[logging.getLevelName(levels[said.level]), said.text] for said in decision.messages]
    facts = {"fired": fired, "messages": messages, "flags": [flag for flag in _ORDER if flag in flags]}
    return {key: value for key, value in facts.items() if value}

"""Fuzz targets for every parser of user-written text: policies, rules, and tests of rules.

``make fuzz`` runs each with atheris, guided by coverage; ``tests/test_rules_fuzz.py`` runs each over earlier findings
and over inputs from hypothesis. A target returns on any input: our own errors are answers, any other exception is a
bug.

    python tests/fuzz/fuzz_rules.py TARGET [CORPUS...] [-max_total_time=600 and other options of libFuzzer]
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace

# Under the main guard: callers that use the targets as functions need no atheris.
if __name__ == "__main__":
    import atheris

    instrumented: contextlib.AbstractContextManager[object] = atheris.instrument_imports(
        include=["steptape.rules", "simpleeval", "yaml"]
    )
else:
    instrumented = contextlib.nullcontext()

with instrumented:
    from steptape import Policy
    from steptape.rules.checks.findings import findings_of
    from steptape.rules.checks.length_conditions import impossible_lengths
    from steptape.rules.checks.nan_guard import unguarded_spikes
    from steptape.rules.engine.decisions import canonical_line, outcome_from_event, outcome_payload
    from steptape.rules.engine.engine import Engine
    from steptape.rules.errors import ExpressionError, PolicyError, excerpt
    from steptape.rules.language.binding import bind
    from steptape.rules.language.bound_rule import NameScope
    from steptape.rules.language.expressions import parse
    from steptape.rules.policy_file.blueprint import draw_blueprint
    from steptape.rules.policy_file.document import Place
    from steptape.rules.policy_file.policy import parse_policy
    from steptape.rules.policy_file.written_expressions import compile_rule
    from steptape.rules.readings.reading import Names
    from steptape.rules.scenarios.file import parse_tests
    from steptape.rules.scenarios.run import result_json, result_lines, run_test
    from steptape.store.event_json import encoded
    from steptape.store.events import Event

HEAD = """\
params: {spike: 2.0, window: 5, word: ab, on: true}
controller_metrics:
  - {name: w, class: HistoryBasedMetric, arguments: {window_size: 5}}
  - {name: s, class: TrainingState}
  - {name: l, class: Loss}
  - {name: e, class: EvalMetrics}
operations:
  - {name: note, class: LogControl, arguments: {log_format: "{w} {s[epoch]:.3f} {logs}", log_level: INFO}}
"""

CONTROLLER = "controllers: [{name: c, triggers: [on_step_end], rule: loss > 1, operations: [note.should_log]}]\n"
BASE = parse_policy(HEAD + CONTROLLER)
SCOPE = NameScope(tuple(metric.name for metric in BASE.metrics), BASE.params)

EVENTS = [
    Event("train_begin"),
    Event("log", step=1, seq=1, metrics={"loss": 2.0, "lr": 1e-3}, epoch=0.5),
    Event("evaluate", step=1, seq=2, metrics={"eval_loss": 3.0}, epoch=0.5),
    Event("step_end", step=1, seq=3, metrics={"loss": 1.0, "grad_norm": float("inf")}),
    Event("step_end", step=2, seq=4, metrics={"loss": float("nan")}, attrs={"path": "x"}),
    Event("save", step=2, seq=5, attrs={"is_final": True}),
    Event("train_end", step=2, seq=6),
]
#: The longest imagined run, in steps, that a fuzzer has time for.
MAX_STEPS = 500


def policy(data: bytes) -> None:
    """Parse and run a whole policy file."""
    text = _text(data)
    try:
        loaded = parse_policy(text)
    except PolicyError as error:
        _check_problems(error, text)
        return
    findings = findings_of(loaded)
    assert findings == sorted(findings)
    _exercise(loaded)


def rule(data: bytes) -> None:
    """Parse and run one rule without its file, whose parsing would take most of the time."""
    text = _text(data)
    names = Names()
    try:
        bound = bind(parse(text), SCOPE)
        own = compile_rule(text, bound, names, lambda offset: Place(1, offset + 1))
    except ExpressionError as error:
        _check_faults(error, text)
        return
    controllers = (replace(BASE.controllers[0], rule=own),)
    blueprint = draw_blueprint(controllers, (), (), (), names)
    loaded = replace(BASE, controllers=controllers, blueprint=blueprint)
    list(unguarded_spikes(loaded))
    list(impossible_lengths(loaded, lambda _: 5))
    _exercise(loaded)


def tests(data: bytes) -> None:
    """Parse and run a file of tests."""
    text = _text(data)
    try:
        loaded = parse_tests(text)
    except PolicyError as error:
        _check_problems(error, text)
        return
    for test in loaded:
        if test.scenario.steps <= MAX_STEPS:
            result = run_test(test)
            assert result.passes or result_lines(result)
            json.dumps(encoded(result_json(result)), allow_nan=False)


TARGETS: dict[str, Callable[[bytes], None]] = {"policy": policy, "rule": rule, "tests": tests}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _check_problems(error: PolicyError, text: str) -> None:
    """Check that every problem has a place and a one-line message, and can be excerpted."""
    assert error.problems
    for problem in error.problems:
        assert problem.line >= 1, problem
        assert problem.column >= 1, problem
        assert "\n" not in problem.message, problem
        excerpt(text, problem.line, problem.column)


def _check_faults(error: ExpressionError, text: str) -> None:
    """Check that every fault is inside the text."""
    assert error.faults
    assert all(0 <= fault.offset <= len(text) for fault in error.faults), error.faults


def _exercise(loaded: Policy) -> None:
    """Fold events and serialize the outcomes, as a recorder does."""
    engine = Engine(loaded)
    outcomes = [*engine.start(), *(outcome for event in EVENTS for outcome in engine.observe(event))]
    for outcome in outcomes:
        kind, attrs = outcome_payload(outcome)
        written = json.loads(json.dumps(attrs, allow_nan=False))
        assert canonical_line(outcome_from_event(Event(kind, attrs=written))) == canonical_line(outcome)


def main() -> None:
    """Fuzz the target that the command line names."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        print(f"usage: {os.path.basename(sys.argv[0])} {'|'.join(TARGETS)} [CORPUS...] [-OPTION=VALUE...]")
        sys.exit(2)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Measures the cost of rules per event against TrAC's way of evaluating the same rules in the same run.

    .venv/bin/python benchmarks/rules.py [--rounds N]

One JSON line a case: the best and the median of many rounds, in microseconds of processor time an event, and the ratio
to the first case. Cases take turns within a round, so that other load on the machine affects all of them. A rule has
two conditions. It evaluates both and never fires. TrAC keeps windows of values and evaluates each rule's
text with simpleeval; ``parsed`` skips the parsing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import simpleeval  # type: ignore[import-untyped]

from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

BATCH = 250
RULES = 10


def events(metrics: int = RULES, kind: str = "step_end") -> list[Event]:
    """Return one batch of events, with different values near 1,000."""
    names = [f"m{at}" for at in range(metrics)]
    return [
        Event(kind, step, step, metrics={name: 1_000 + (step * 7919 + at) % 997 / 7 for at, name in enumerate(names)})
        for step in range(BATCH)
    ]


def engine(rule: str, rules: int = RULES) -> Engine:
    """Return an engine with this many rules at every step; ``{m}`` in the rule is each rule's own series."""
    head = "triggers: [on_step_end], operations: []"
    lines = (f"  - {{name: c{at}, {head}, rule: '{rule.format(m=f'm{at}')}'}}\n" for at in range(rules))
    return Engine(parse_policy(f"controllers:\n{''.join(lines)}"))


def of_engine(rule: str, batch: Sequence[Event], rules: int = RULES) -> Callable[[], None]:
    """Return a function that passes a batch to a warmed-up engine."""
    observe = engine(rule, rules).observe

    def run() -> None:
        for event in batch:
            observe(event)

    for _ in range(12):
        run()
    return run


def of_simpleeval(length: int, batch: Sequence[Event], *, is_parsed: bool) -> Callable[[], None]:
    """Return a function that evaluates the same rules over windows of values as TrAC does: one evaluator an event."""
    text = 'len(w["{m}"]) > 9 and w["{m}"][-1] > 2 * sum(w["{m}"]) / len(w["{m}"]) + 1'
    rules = [text.format(m=f"m{at}") for at in range(RULES)]
    trees = [simpleeval.SimpleEval.parse(rule) if is_parsed else None for rule in rules]
    windows = {f"m{at}": deque([1_000.0] * length, maxlen=length) for at in range(RULES)}
    functions = {"len": len, "sum": sum}

    def run() -> None:
        for event in batch[:10]:
            for name, window in windows.items():
                window.append(event.metrics[name])
            evaluator = simpleeval.EvalWithCompoundTypes(functions=functions, names={"w": windows})
            for rule, tree in zip(rules, trees, strict=True):
                evaluator.eval(rule, previously_parsed=tree)

    return run


def window_rule(length: int, function: str = "mean") -> str:
    """Return a rule of two conditions over a window."""
    return f"len({{m}}) > 9 and {{m}} > 2 * {function}({{m}}, {length}) + 1000"


def main() -> None:
    """Run every case and print its line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    ten, thousand = events(), events(1_000)
    cases: dict[str, tuple[int, Callable[[], None]]] = {
        "10 rules, mean of 10": (BATCH, of_engine(window_rule(10), ten)),
        "1 rule, mean of 10": (BATCH, of_engine(window_rule(10), ten, 1)),
        "10 rules, mean of 100": (BATCH, of_engine(window_rule(100), ten)),
        "10 rules, mean of 1,000": (BATCH, of_engine(window_rule(1_000), ten)),
        "10 rules, std of 1,000": (BATCH, of_engine(window_rule(1_000, "std"), ten)),
        "10 rules, max of 1,000": (BATCH, of_engine(window_rule(1_000, "max"), ten)),
        "10 rules, mean of 10, among 1,000 metrics": (BATCH, of_engine(window_rule(10), thousand)),
        "10 rules, an event of another kind": (BATCH, of_engine(window_rule(10), [*ten[:1], *events(kind="evaluate")])),
        "simpleeval, 10 rules, mean of 10, parsed": (10, of_simpleeval(10, ten, is_parsed=True)),
        "simpleeval, 10 rules, mean of 10": (10, of_simpleeval(10, ten, is_parsed=False)),
        "simpleeval, 10 rules, mean of 1,000, parsed": (10, of_simpleeval(1_000, ten, is_parsed=True)),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (count, run) in cases.items():
            start = time.thread_time_ns()
            run()
            taken[name].append((time.thread_time_ns() - start) / count / 1e3)
    first = min(next(iter(taken.values())))
    for name, times in taken.items():
        best = min(times)
        line = {"case": name, "best_us": best, "median_us": statistics.median(times), "times_the_first": best / first}
        print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in line.items()}))


if __name__ == "__main__":
    main()

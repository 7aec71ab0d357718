"""Measures the cost of rules per event against TrAC's way of evaluating the same rules in the same run.

    .venv/bin/python benchmarks/rules.py [--rounds N]

One JSON line a case: the best and the median of many rounds, in microseconds of processor time an event, and the ratio
to the first case. Cases take turns within a round, so that other load on the machine affects all of them. A rule has
two conditions. It evaluates both and never fires. The detectors of ``tests/data/detectors`` read 28 windows of eight
metrics. TrAC keeps windows of values and evaluates each rule's text with simpleeval; ``parsed`` skips the parsing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import simpleeval  # type: ignore[import-untyped]

from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.store.events import Event

BATCH = 250
RULES = 10

DETECTORS = Path(__file__).parents[1] / "tests" / "data" / "detectors" / "adaptive.yaml"


def events(metrics: int = RULES, kind: str = "step_end") -> list[Event]:
    """Return one batch of events, with different values near 1,000."""
    names = [f"m{at}" for at in range(metrics)]
    return [
        Event(kind, step, step, metrics={name: 1_000 + (step * 7919 + at) % 997 / 7 for at, name in enumerate(names)})
        for step in range(BATCH)
    ]


def engine(rule: str, rules: int = RULES, keys: str = "", top: str = "") -> Engine:
    """Return an engine with this many rules at every step; ``{m}`` in the rule is each rule's own series.

    Args:
        keys: More keys of each controller.
        top: Keys at the top of the policy; one that begins with ``{m}`` is repeated for each series.
    """
    head = f"triggers: [on_step_end], operations: []{keys and ', '}{keys}"
    lines = (f"  - {{name: c{at}, {head}, rule: '{rule.format(m=f'm{at}')}'}}\n" for at in range(rules))
    return Engine(parse_policy(f"{top}controllers:\n{''.join(lines)}"))


def repeated(key: str, line: str) -> str:
    """Return a key at the top of a policy with a line for each series."""
    return f"{key}:\n" + "".join(f"  {line.format(m=f'm{at}')}\n" for at in range(RULES))


def health() -> list[Event]:
    """Return one batch of updates of a mixture of experts that trains well."""
    batch = []
    for step in range(BATCH):
        noise = step * 7919 % 997 / 997
        metrics = {"loss": 3 + noise / 50, "grad_norm": 1 + noise / 5, "lr": 1e-5, "lr_scheduled": 1e-4}
        metrics |= {"moe_load_imbalance": 1.3, "moe_expert_utilization": 0.97, "moe_aux_loss": 0.01 + noise / 1_000}
        batch.append(Event("step_end", step, step, metrics=metrics))
    return batch


def of_engine(
    rule: str, batch: Sequence[Event], rules: int = RULES, keys: str = "", top: str = ""
) -> Callable[[], None]:
    """Return a function that passes a batch to a warmed-up engine with this many rules."""
    return warmed_up(engine(rule, rules, keys, top), batch)


def warmed_up(engine: Engine, batch: Sequence[Event]) -> Callable[[], None]:
    """Return a function that passes a batch to an engine that has seen twelve."""
    observe = engine.observe

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


def newer_cases(batch: Sequence[Event]) -> dict[str, tuple[int, Callable[[], None]]]:
    """Return the cases of definitions, states, and the keys that say when a rule is asked."""
    plain, values = window_rule(10), repeated("define", "d{m}: 2 * mean({m}, 10) + 1000")
    kept = repeated("define", 'd{m}: {{value: {m}, admit: not fired_now("c0")}}')
    classes = repeated("states", "s{m}: [{{high: '{m} > 2 * mean({m}, 10) + 1000'}}, {{low: 'True'}}]")
    return {
        name: (BATCH, run)
        for name, run in {
            "10 rules, a name for the limit": of_engine("len({m}) > 9 and {m} > d{m}", batch, top=values),
            "10 rules, a series of a condition": of_engine("streak({m} > 9000) > 2 and len({m}) > 9", batch),
            "10 rules, every: value": of_engine(plain, batch, keys="every: value"),
            "10 rules, requires": of_engine(plain, batch, keys="requires: [m0]"),
            "10 rules, clear": of_engine(plain, batch, keys="clear: step < 0"),
            "10 rules, ages": of_engine("age({m}) > 9 or absent({m}, steps=10)", batch),
            "10 states of 2 classes, and their ages": of_engine(
                's{m} == "high" and age("s{m}") > 9', batch, top=classes
            ),
            "10 rules, milestones": of_engine("milestone(every=0.05) and {m} > 9000", batch),
            "10 rules, admitted values": of_engine("len({m}) > 9 and {m} > 2 * mean(d{m}, 10) + 1000", batch, top=kept),
            "1 rule on a family of 10": of_engine('any(series("m*") > 2 * mean(series("m*"), 10) + 1000)', batch, 1),
            "1 rule for each of 10": of_engine(
                'series("m*") > 2 * mean(series("m*"), 10) + 1000', batch, 1, 'for_each: "m*"'
            ),
        }.items()
    }


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
        "14 detectors with 28 windows": (BATCH, warmed_up(Engine(load_policy(DETECTORS)), health())),
        "10 rules, an event of another kind": (BATCH, of_engine(window_rule(10), [*ten[:1], *events(kind="evaluate")])),
        **newer_cases(ten),
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

"""Forms of what rules read of series, and the events of short runs, for tests that draw them."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from steptape.store.events import Event, SampleLosses
from steptape.store.plan import Plan

NUMBERS = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        0.0,
        0.1,
        0.3,
        1.0,
        1.5,
        2.0,
        2.0000000000000004,
        3.0,
        7.0,
        -1.0,
        1e300,
        5e-324,
    ]
)

REDUCTIONS = [
    "mean",
    "sum",
    "min",
    "max",
    "std",
    "var",
    "median",
    "slope",
    "detrended_std",
    "count",
    "first",
    "last",
    "argmax",
    "mad",
]

LATE_PLANS: list[dict[str, Any]] = [{"total_steps": 12}, {"constants": {"norm": 1.5, "declared": 4}}]

PLAN = Plan(total_steps=20, total_epochs=2, world_size=4, constants={"declared": 2.0})

FORMS = [
    "{function}({series}, window)",
    "{function}({series}, 3)",
    "{function}({series}, window + 1)",
    "{function}({series}, 70)",
    "{function}({series}, window, skip=1)",
    "{function}({series}, 2, skip=3)",
    'mean({series}, 4, half="older")',
    'std({series}, 3, half="recent")',
    "quantile({series}, window, 0.3)",
    "ema({series}, window)",
    "ema({series}, 3, skip=window)",
    "streak(improved({series}))",
    "streak(improved({series}, by=threshold, skip=1))",
    "streak(not improved({series}, by=0.5))",
    "peak({series})",
    "peak({series}, skip=1)",
    "trough({series})",
    "initial({series}, skip=1)",
    "zscore({series}, window)",
    "rate({series})",
    'slope({series}, 3, per="step")',
    "mean({series}, 3, min=2)",
    "ema({series}, 2, last=window)",
    "lag({series}, steps=2)",
    "age({series})",
    "mean({series}, seconds=2.5)",
    "{function}({series}, steps=3)",
    "{function}({series}, steps=window, skip=1)",
    "{function}({series}, epochs=0.25)",
    "{function}({series}, samples=4)",
    "{function}({series}, tokens=9)",
    'max({series}, steps=6, half="older")',
    "min({series}, steps=6, min=2)",
    "delta({series}, steps=2)",
    "delta({series}, seconds=1.5)",
    "lag({series}, epochs=0.2)",
    "rate({series}, 3)",
    'slope({series}, steps=4, per="step")',
    "zscore({series}, steps=4)",
    "streak({series} > 1)",
    "lag({series}, 1)",
    "lag({series}, window)",
    "delta({series})",
    "len({series})",
    "{series}",
    "{series}",
]

FACTS = [
    "threshold",
    "factor",
    "window",
    "2",
    "1.5",
    "0",
    "0.0",
    "step",
    "epoch",
    "progress",
    "max_steps",
    "elapsed_s",
    "updates_skipped",
    "samples_seen",
    "tokens_seen",
    "undefined",
]

#: Readings of series of expressions.
EXPRESSION_FORMS = [
    "{function}({expression}, {last}window)",
    "{function}({expression}, {last}3, skip=1)",
    'mean({expression}, 4, half="older")',
    "quantile({expression}, window, q=0.3)",
    "{function}({expression}, steps=3)",
    "mean({expression}, 3, min=2)",
    "mean({expression}, seconds=2.5)",
    "ema({expression}, 3)",
    "ema({expression}, window, skip=1)",
    "peak({expression})",
    "trough({expression}, skip=1)",
    "zscore({expression}, 3)",
    "slope({expression}, 3)",
    "lag({expression}, 1)",
    "lag({expression}, steps=2)",
    "delta({expression})",
    "age({expression})",
    "peak(mean({expression}, 2))",
    "ema(lag({expression}, 1), 2)",
    "sum(mean({expression}, 2) > threshold, last=window)",
]
EXPRESSIONS = [
    "abs(delta({series}))",
    "-{series}",
    "{series} > threshold",
    "{series} > 1 and lr < factor",
    "mean({series}, 3)",
    "mean({series}, 3, min=2)",
    "mean({series}, steps=3)",
    "{series} * window + step",
    "{series} if loss > 1 else lr",
    "finite({series})",
    "lag({series}, 1) - eval_loss",
    "log({series})",
    "1 / {series}",
    "epoch + {series}",
]

SAMPLES = st.sampled_from(
    [None, None, *(SampleLosses(struct.pack("<4f", *losses)) for losses in ((1, 1, 9, 1), (1, 1, 1, math.inf)))]
)


@st.composite
def streams(draw: st.DrawFn, *, late_plans: bool = False) -> list[Event]:
    """Draw the events of a short run, with gaps, non-finite values, and an attempt that restarts."""
    events: list[Event] = []
    attempt, elapsed = 0, 0

    counts = draw(st.sampled_from([{}, {"batch_size": 2.0, "num_tokens": 3.0}, {"samples_seen": 1.0}]))
    has_epochs = draw(st.booleans())

    def emit(
        kind: str,
        step: int,
        attrs: Mapping[str, object] | None = None,
        samples: SampleLosses | None = None,
        **metrics: float,
    ) -> None:
        epoch = step / 10 if has_epochs else draw(st.sampled_from([None, step / 10]))
        place = (kind, step, len(events), attempt)
        events.append(
            Event(*place, epoch=epoch, elapsed_ns=elapsed, metrics=metrics, attrs=attrs or {}, samples=samples)
        )

    emit("train_begin", 0)
    for step in range(1, draw(st.integers(1, 14)) + 1):
        if draw(st.integers(0, 9)) == 0:
            attempt, elapsed = attempt + 1, 0
        elapsed += draw(st.integers(0, 2_000_000_000))
        emit("step_begin", step - 1)
        logged = {name: draw(NUMBERS) for name in ("loss", "norm", "epoch") if draw(st.integers(0, 4))}
        attrs, samples = draw(st.sampled_from([None, None, {"applied": False}])), draw(SAMPLES)
        counted = {name: value * step if name == "samples_seen" else value for name, value in counts.items()}
        emit("step_end", step, attrs, samples, **logged, **counted)
        if draw(st.integers(0, 3)) == 0:
            emit("custom:x", step, loss=draw(NUMBERS))
        if late_plans and draw(st.integers(0, 3)) == 0:
            emit("plan", step, draw(st.sampled_from(LATE_PLANS)))
        if draw(st.booleans()):
            emit("log", step, loss=draw(NUMBERS), learning_rate=draw(NUMBERS))
        if draw(st.booleans()):
            # Logs of other tools may hold evaluations of later steps with no step between them.
            emit("evaluate", step + draw(st.sampled_from([0, 0, 1])), eval_loss=draw(NUMBERS))
        if draw(st.booleans()):
            emit("save", step, draw(st.sampled_from([{"size_bytes": 7}, {"size_bytes": 8}, {}])))
    emit("train_end", events[-1].step)
    return events


def readings_of(form: str) -> list[str]:
    """Return what a form can be: with each function, of each expression, of series at the rule's events or others."""
    if "{expression}" in form:
        parts = list(zip(itertools.cycle(REDUCTIONS), EXPRESSIONS, strict=False))
    else:
        parts = [(function, "") for function in REDUCTIONS]
    return list(
        dict.fromkeys(
            form.format(function=function, expression=expression.format(series=series), series=series, last=last)
            for function, expression in parts
            for last in ["last=" if function in ("min", "max", "sum") else ""]
            for series in ("loss", "eval_loss")
        )
    )

"""Draws policies over all keys and functions of the rule language, and events of all shapes, from a seed."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import yaml
from reference_language import first_series
from reference_policy import Reference

from steptape.store.events import Event
from steptape.store.plan import Plan

SERIES = {
    "step_end": ["loss", "acc", "lr"], "log": ["loss", "grad"], "evaluate": ["eval_loss", "acc"],
    "custom:reward": ["score"], "save": [], "epoch_end": [],
}  # fmt: skip
CONSTANTS = {"total_samples": 25.0, "total_tokens": 40.0, "num_params": 3.0}
ODD_SERIES = [
    'series("loss", kind="log")',
    'series("score", kind="custom:reward")',
    'series("acc")',
    'series("epoch")',
    "never",
]
NAMES = ["loss", "loss", "loss", "acc", "lr", "grad", "eval_loss", "score"]
REDUCTIONS = [
    "mean", "sum", "min", "max", "std", "var", "median", "mad", "slope", "detrended_std", "count", "first", "last",
    "argmin", "argmax",
]  # fmt: skip
PATIENCE: list[dict[str, Any]] = [
    {}, {"patience_threshold": 2}, {"patience_threshold": 0}, {"patience_threshold": "n"},
    {"patience_threshold": 1, "mode": "no_reset_on_failure"},
]  # fmt: skip
MILESTONES = ["every=0.1", "every=1/3", "at=0.5", "at=[0.25, 1/3, 0.9]", "at=[1]", "every=low / 5"]
FAMILIES = ["g/*", "g/*", "*/1", "g/1*"]
ODD_CONDITIONS = [
    "[loss, acc][0] > 1", '{"a": loss}.b > 1', '{"a": loss}.get("a") > 1', "(step & 3) == 1", 'f"{step}" == "3"',
    '"loss".startswith("l") and loss > 1', "sorted([loss, acc, lr])[1] > 1", "any([loss > 2, acc > 2])",
    "all([x > 1 for x in [loss, acc]])", "not (loss is None)", "~step < -3", "step in [1, 2, 5, 8]",
    "len({step % 2, step % 3}) == 1", 'str(step)[-1] == "5"', "[x for x in [loss, acc, lr] if x > 1][1:] != []",
    "dict(a=step)['a'] % 2 == 0", "float(step) > 10", "loss == loss", "step is None or loss > 2",
]  # fmt: skip
ODD_NUMBERS = [
    "(step % 7) ** 2", "1 << (step % 5)", "min(step, acc, 3)", "int(loss)", "max(step, epoch)", "sum([loss, acc], 1)",
    "[1, 2, 3].count(step)", "tuple([loss, 2])[-1]", "-loss", "+acc", "round(loss, 1)", "list({3, 1, 2})[0]",
    "step ^ 3", "step | 1",
]  # fmt: skip
CALLS = [
    "abs", "finite", "sign", "round", "math_trunc", "math_floor", "math_ceil", "sqrt", "exp", "log", "cos", "tanh",
    "clamp",
]  # fmt: skip
TRIGGERS = ["on_step_end"] * 5 + [
    "on_log",
    "on_evaluate",
    "on_custom:reward",
    "on_save",
    "on_epoch_end",
    "on_train_begin",
]
METRICS: dict[str, list[str]] = {
    "Loss": ["loss", "step", "grad", "epoch"],
    "EvalMetrics": ["eval_loss", "epoch", "acc"],
    "HistoryBasedMetric": ["training_loss.loss[-1]", "metrics.eval_loss[-1]", 'metrics["eval_loss"][-2]', "window_size",
                           "training_loss.steps[0]", "metrics.steps[-1]"],
    "TrainingState": ["global_step", "max_steps", "epoch", "num_train_epochs"],
    "PerProcessState": ["rank"],
}  # fmt: skip


class PolicyDraw:
    """One random policy."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.params = {"high": 2.5, "n": 3, "low": 1.0}
        self.values: list[str] = []
        self.texts: dict[str, str] = {}
        self.conditions: list[str] = []
        self.states: list[str] = []
        self.controllers: list[str] = []
        self.at_states: set[str] = set()
        self.for_each: set[str] = set()
        self.with_clear: list[str] = []
        self.above: list[str] = []
        self.metrics: dict[str, str] = {}
        self.may_ask_states = True
        self.is_in_state = False
        self.has_no_milestones = False
        #: The family of this policy, and the name of a series that may stand for one now: a member, or an admitted one.
        self.family = random.choice(FAMILIES)
        self.pattern = f'series("{self.family}")'
        self.free = ""
        self.depth_of_families = 0
        self.admitted: list[str] = []

    def chance(self, share: float) -> bool:
        """Whether a draw below the share came."""
        return self.random.random() < share

    # --- expressions ---

    def series(self) -> str:
        """A series as written."""
        name = self.random.choice(NAMES)
        if self.free and self.chance(0.5):
            return self.free
        if self.admitted and self.chance(0.3):
            return self.random.choice(self.admitted)
        if self.chance(0.12):
            return self.random.choice(ODD_SERIES)
        return name

    def constant(self) -> str:
        """A number."""
        return self.random.choice(["0", "1", "2", "1.5", "0.3", "3.7", "2.2", "high", "low"])

    def source(self, depth: int) -> str:
        """The series of a function: as written, a name, or an expression."""
        if depth <= 0 or self.chance(0.6):
            return self.series()
        return self.condition(depth - 1, in_series=True) if self.chance(0.35) else self.inner(depth - 1)

    def inner(self, depth: int) -> str:
        """An expression of series with a number."""
        pick = self.random.choice(
            ["abs", "delta", "finite", "mul", "window", "ratio", "lag", "define", "sub", "family"]
        )
        if pick == "define" and self.values:
            return self.random.choice(self.values)
        if pick == "family" and self.depth_of_families < 1:
            return self.of_members(["max", "min", "mean", "sum", "median", "count"])
        if pick in ("abs", "finite"):
            return f"{pick}({self.source(depth)})"
        if pick == "window":
            return self.window(depth)
        if pick in ("delta", "lag"):
            return self.change(depth)
        op = {"mul": "*", "ratio": "/"}.get(pick, "-")
        other = self.random.choice([self.constant(), self.series(), "step"])
        return f"({self.source(depth)} {op} {other})"

    def of_members(self, functions: list[str]) -> str:
        """A function of a family."""
        function, before = self.random.choice(functions), self.free
        is_condition = function in ("any", "all") or self.chance(0.2)
        self.free, self.depth_of_families = self.pattern, self.depth_of_families + 1
        argument = self.condition(1, in_series=True) if is_condition else self.source(1)
        if self.pattern not in argument:
            argument = self.pattern + " > 2" * is_condition
        elif self.chance(0.15):
            argument = f"{self.pattern} > {self.random.choice(['median', 'max', 'mean'])}({argument})"
        self.free, self.depth_of_families = before, self.depth_of_families - 1
        return f"{function}({argument}{', 0.5' * (function == 'quantile')})"

    def length(self) -> str:
        """A window's length by count."""
        return self.random.choice(["1", "2", "3", "4", "5", "n", "n + 2", "2 * n"])

    def extent(self) -> str:
        """The argument that says how far a window goes."""
        if self.chance(0.55):
            return self.length()
        unit = self.random.choice(["steps", "steps", "epochs", "seconds", "samples", "tokens"])
        return f"{unit}={self.random.choice(['1', '2', '4', '7'] + ['0.5', '1.5'] * (unit in ('epochs', 'seconds')))}"

    def options(self, extent: str) -> str:
        """Skip, half and min."""
        text = f", {extent}"
        if self.chance(0.2):
            text += f", skip={self.random.choice([1, 2])}"
        if self.chance(0.15):
            text += f', half="{self.random.choice(["older", "recent"])}"'
        if self.chance(0.2):
            text += f", min={self.random.choice([1, 2, 3])}"
        return text

    def window(self, depth: int) -> str:
        """A function of a window."""
        name = self.random.choice(
            [*REDUCTIONS, "mean", "mean", "quantile", "zscore", "ema", "peak", "trough", "rate", "slope_step"]
        )
        source = self.source(depth)
        if name == "slope_step":
            return f'slope({source}{self.options(self.extent())}, per="step")'
        if name == "quantile":
            return f"quantile({source}, {self.length()}, {self.random.choice(['0.5', '0.25', '0.9', '1', '0'])})"
        if name == "ema":
            rest = f", {self.length()}"
            if self.chance(0.3):
                rest += f", {self.random.choice(['last', 'steps'])}={self.random.choice([2, 5])}"
            return f"ema({source}{rest}{self.skip()})"
        if name in ("peak", "trough"):
            rest = f", {self.random.choice(['last', 'steps'])}={self.random.choice([2, 5])}" if self.chance(0.4) else ""
            return f"{name}({source}{rest}{self.skip()})"
        if name == "rate":
            return f"rate({source})" if self.chance(0.5) else f"rate({source}, {self.length()})"
        extent = self.extent()
        if name in ("min", "max", "sum") and "=" not in extent and not self._is_series(source):
            extent = f"last={extent}"
        return f"{name}({source}{self.options(extent)})"

    def _is_series(self, text: str) -> bool:
        """Whether a text names a series, or is a name for that of one."""
        text = self.texts.get(text, text)
        return text in (*NAMES, *ODD_SERIES, *self.admitted, self.pattern, "fam")

    def skip(self) -> str:
        """Now and then leave out the newest values."""
        return f", skip={self.random.choice([1, 2])}" if self.chance(0.25) else ""

    def change(self, depth: int) -> str:
        """A lag or a difference."""
        unit = self.random.choice(["steps", "epochs", "seconds", "samples", "tokens"])
        by = self.random.choice(["1", "2", "3", f"{unit}=2"])
        return self.random.choice(
            [f"lag({self.source(depth)}, {by})", f"delta({self.source(depth)}, {by})", f"delta({self.source(depth)})"]
        )

    def number(self, depth: int) -> str:
        """A number as rules read it."""
        picks = ["series", "window", "window", "change", "fact", "call", "sum", "choice", "list", "state", "controller",
                 "metric", "define", "history", "family", "odd"]  # fmt: skip
        pick = self.random.choice(picks) if depth > 0 else self.random.choice(["series", "define", "window"])
        return self._number_of(pick, depth)

    def _number_of(self, pick: str, depth: int) -> str:
        draw = self.random
        if pick == "define" and self.values:
            return draw.choice(self.values)
        if pick == "state" and self.states and self.may_ask_states:
            return f'age("{draw.choice(self.states)}")'
        if pick == "controller" and self.controllers:
            function = draw.choice(["times_fired", "steps_since", "streak"])
            return f'{function}("{draw.choice(self.controllers)}")'
        if pick == "metric" and self.metrics and self.may_ask_states:
            name = draw.choice(list(self.metrics))
            return f"{name}.{draw.choice(METRICS[self.metrics[name]])}"
        if pick == "fact":
            return draw.choice(["step", "epoch", "progress", "max_steps", "elapsed_s", "samples_seen", "tokens_seen",
                                "world_size", "updates_applied", "updates_skipped", "undefined"])  # fmt: skip
        if pick == "call":
            function = draw.choice(CALLS)
            return f"{function}({self.number(depth - 1)}{', 1, 3' * (function == 'clamp')})"
        if pick == "sum":
            other = draw.choice([self.constant(), self.number(depth - 1), "num_params"])
            return f"({self.number(depth - 1)} {draw.choice(['+', '-', '*', '/', '//', '%'])} {other})"
        if pick == "choice":
            return f"({self.number(depth - 1)} if {self.condition(depth - 1)} else {self.number(depth - 1)})"
        if pick == "list":
            two = f"{self.number(depth - 1)}, {self.number(depth - 1)}"
            function = draw.choice(["max", "min", "sum", "mean", "len", "argmax", "std", "first"])
            return draw.choice(
                [f"{function}([{two}])", f"{function}([x * 2 for x in [{two}, 1] if x > {self.constant()}])"]
            )
        if pick == "family":
            return self.of_members(["max", "min", "mean", "sum", "median", "count", "quantile"])
        if pick == "odd":
            return draw.choice(ODD_NUMBERS)
        if pick == "history":
            return draw.choice([f"len({self.series()})", f"age({self.source(1)})", f"initial({self.source(1)})",
                                f"streak({self.condition(1, in_series=True)})",
                                f"streak(not improved({self.source(1)}, by=0.5))"])  # fmt: skip
        if pick == "window":
            return self.window(depth)
        return self.change(depth) if pick == "change" else self.series()

    def condition(self, depth: int, *, in_series: bool = False) -> str:
        """A condition; one that only reads series, params and facts where it is a series."""
        value = self.source if in_series else self.number
        draw = self.random
        if depth > 0 and self.chance(0.3):
            left, right = self.condition(depth - 1, in_series=in_series), self.condition(depth - 1, in_series=in_series)
            return draw.choice([f"({left} and {right})", f"({left} or {right})", f"not {left}"])
        if in_series and self.chance(0.1) and self.depth_of_families < 1:
            return self.of_members(["any", "all"])
        if in_series:
            return self._comparison(self.series()) if self.chance(0.7) else f"isfinite({self.series()})"
        pick = draw.choice(
            ["compare"] * 6
            + [
                "nan",
                "absent",
                "fired",
                "milestone",
                "now",
                "state",
                "define",
                "null",
                "rank",
                "chain",
                "family",
                "odd",
            ]
        )
        if pick == "define" and self.conditions:
            return draw.choice(self.conditions)
        if pick == "family":
            return self.of_members(["any", "all"])
        if pick == "odd":
            return draw.choice(ODD_CONDITIONS + ["member in ('g/1', 'g/10')"] * bool(self.free))
        if pick == "fired" and self.controllers:
            return f'{draw.choice(["times_fired", "streak"])}("{draw.choice(self.controllers)}") > 0'
        if pick == "milestone" and not self.has_no_milestones:
            of = f', of="{draw.choice(["steps", "epochs", "samples", "tokens"])}"' if self.chance(0.5) else ""
            return f"milestone({draw.choice(MILESTONES)}{of})"
        if pick == "now" and self.above:
            return f'fired_now("{draw.choice(self.above)}")'
        if pick == "state" and self.states and self.may_ask_states:
            name = draw.choice(self.states)
            return draw.choice(
                [f'{name} == "a"', f'{name} in ("b", "c")', f'age("{name}") == 0', f'previous("{name}") == "a"']
            )
        if pick == "null" and self.metrics and self.may_ask_states:
            return f"{draw.choice(list(self.metrics))} {draw.choice(['==', '!='])} None"
        if pick == "nan":
            return f"{draw.choice(['', 'not '])}isfinite({value(depth - 1)})"
        if pick == "absent":
            unit = draw.choice(["steps", "steps", "epochs", "seconds"])
            return f"absent({self.source(1)}, {unit}={draw.choice([1, 3, 8])})"
        if pick == "rank" and not self.is_in_state:
            return draw.choice(["any_rank(loss > 2)", "max_rank(loss) > 2", "spread(acc) > 1", "min_rank(loss) < 1"])
        if pick == "chain":
            return f"{self.constant()} < {value(depth - 1)} <= {value(depth - 1)}"
        return self._comparison(value(depth - 1))

    def _comparison(self, left: str) -> str:
        return f"{left} {self.random.choice(['>', '>', '<', '<', '>=', '<=', '!='])} {self.constant()}"

    # --- the file ---

    def policy(self) -> dict[str, Any]:
        """The whole file."""
        draw = self.random
        file: dict[str, Any] = {"params": self.params}
        self._define(file)
        if self.chance(0.3):
            classes = draw.sample(list(METRICS), draw.randint(1, 2))
            self.metrics = {f"m{place}": name for place, name in enumerate(classes)}
            file["controller_metrics"] = [self._metric(name, given) for name, given in self.metrics.items()]
        if self.chance(0.4):
            file["states"] = self._states()
        file["cooldowns"] = {"shared": self.span()}
        file["controllers"] = []
        names = [f"c{place}" for place in range(draw.randint(1, 4))]
        self.with_clear = [name for name in names if self.chance(0.25)]
        self.controllers = self.above = names
        self._admit(file)
        self.controllers, self.above = [], []
        self.for_each = {name for name in names if self.chance(0.2)}
        self.at_states = {name for name in names if self.states and self.chance(0.15)}
        for name in names:
            self.controllers = names
            file["controllers"].append(self.controller(name))
            self.above.append(name)
        return file

    def _define(self, file: dict[str, Any]) -> None:
        if not self.chance(0.6):
            return
        file["define"] = {}
        if self.chance(0.3):
            file["define"]["fam"] = self.pattern
            self.pattern = "fam"
        for place in range(self.random.randint(1, 3)):
            is_value = self.chance(0.6)
            text = self.source(2) if is_value else self.condition(2, in_series=True)
            file["define"][f"d{place}"] = text
            self.texts[f"d{place}"] = self.texts.get(text, text)
            (self.values if is_value else self.conditions).append(f"d{place}")

    def _admit(self, file: dict[str, Any]) -> None:
        """Add series of admitted values, whose conditions may name any controller."""
        for name in ["kept", "clean"][: self.random.choice([0, 0, 0, 1, 2])]:
            value = self.random.choice(
                ["loss", "acc", f"loss - {self.source(1)}", f"delta({self.random.choice(NAMES)})"]
            )
            condition = self._plain(lambda: self.condition(2))
            file.setdefault("define", {})[name] = {"value": value, "admit": condition}
            self.admitted.append(name)

    def _metric(self, name: str, given: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "class": given}
        if given == "HistoryBasedMetric":
            entry["arguments"] = {"window_size": self.random.choice([-1, 1, 2, 3])}
        return entry

    def _states(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.is_in_state = True
        for name in ["phase", "mood"][: self.random.randint(1, 2)]:
            classes: list[dict[str, str]] = [{"a": self.condition(1)}, {"b": self.condition(1)}]
            classes += [{"c": "True"}] if self.chance(0.6) else []
            found[name] = (
                classes if self.chance(0.6) else {"triggers": list(dict.fromkeys(self.triggers())), "classes": classes}
            )
            self.states.append(name)
        self.is_in_state = False
        return found

    def triggers(self) -> list[str]:
        """One trigger, now and then several or one twice."""
        found = [self.random.choice(TRIGGERS)]
        if self.chance(0.2):
            found.append(self.random.choice(TRIGGERS))
        return found

    def _plain(self, drawn: Callable[[], str]) -> str:
        """What a controller at changes of a state may say."""
        self.has_no_milestones = True
        text = self._without_ranks(drawn)
        self.has_no_milestones = False
        return text

    def _without_ranks(self, drawn: Callable[[], str]) -> str:
        self.is_in_state = True
        text = drawn()
        self.is_in_state = False
        return text

    def span(self) -> Any:
        """A span."""
        return self.random.choice([1, 2, 5, {"steps": 3}, {"evaluations": 1}, {"evaluations": 2}, {"seconds": 2.5}])

    def escalate(self) -> dict[str, Any]:
        """Operations in stages."""
        draw = self.random
        orders = [[], ["hfcontrols.should_save"], ["hfcontrols.should_log", "hfcontrols.should_save"]]
        stages: list[dict[str, Any]] = [{"operations": draw.choice(orders)} for _ in range(draw.randint(1, 3))]
        for stage in stages:
            stage |= {"times": draw.randint(1, 3)} if self.chance(0.5) else {}
        extra = {"cycle": self.chance(0.5), "cap": draw.randint(2, 5), "forget_after": self.span()}
        return {"stages": stages, **{key: value for key, value in extra.items() if self.chance(0.4)}}

    def controller(self, name: str) -> dict[str, Any]:
        """One controller."""
        draw = self.random
        given: dict[str, Any] = {"name": name, "triggers": self.triggers()}
        if name in self.for_each:
            given["for_each"] = self.family
            self.free = self.pattern
        given["rule"] = self.condition(3)
        if name in self.at_states:
            given["rule"] = self._plain(lambda: self.condition(3))
            given["triggers"] = [f"on_state:{draw.choice(self.states)}"]
        if self.chance(0.3):
            given["patience"] = draw.choice(PATIENCE)
        if self.chance(0.2):
            given["for"] = {"seconds": 2.5} if "patience" in given else draw.choice([1, 2, 3, "n", {"seconds": 2.5}])
        if self.chance(0.3):
            given["cooldown"] = "shared" if self.chance(0.4) else self.span()
        if self.chance(0.1):
            given["once"] = True
        if self.chance(0.15):
            given["between"] = draw.choice([[5, None], [None, 12], [3, 20]])
        if name in self.with_clear:
            given["triggers"] = list(dict.fromkeys(given["triggers"]))
            clear = functools.partial(self.condition, 2)
            given["clear"] = self._plain(clear) if name in self.at_states else clear()
        if self.chance(0.15):
            given["requires"] = [draw.choice([*NAMES, "never", self.family])]
        if self.chance(0.15) and any(word in given["rule"] for word in NAMES):
            given["every"] = "value"
        if self.chance(0.15):
            given["mode"] = "shadow"
        # A message sees all results of its event, but only its own decision and those above.
        self.controllers = [*self.above, name]
        if self.chance(0.3):
            given["triggers"] = list(dict.fromkeys(given["triggers"]))
            given["message"] = f"{{{self._plain(lambda: self.number(1))}:.6g}} at {{step}}"
        self.free = ""
        if self.chance(0.2):
            given["escalate"] = self.escalate()
            given["message"] = given.get("message", "") + " stage {stage}"
        else:
            given["operations"] = draw.choice([[], ["hfcontrols.should_save"], ["hfcontrols.should_log"]])
        return given


def drawn_policy(seed: int) -> str:
    """Return the text of a random policy."""
    file = PolicyDraw(random.Random(seed)).policy()
    reference = Reference(file)
    for given, controller in zip(file["controllers"], reference.given, strict=True):
        if first_series(controller.rule, reference.world) is None:
            given.pop("every", None)
    return yaml.dump(file, Dumper=yaml.CSafeDumper, sort_keys=False, width=10_000)


def drawn_run(seed: int) -> tuple[Plan, list[Event]]:
    """Return a random plan and random events, numbered from 0."""
    draw = random.Random(seed)
    constants = {name: value for name, value in CONSTANTS.items() if draw.random() < 0.5}
    counts = {"total_steps": draw.choice([None, 20, 40]), "total_epochs": draw.choice([None, 3])}
    plan = Plan(**counts, world_size=draw.choice([None, 1, 1, 2]), constants=constants)
    clock = draw.choice(["none", "fact", "metric", "late fact"])
    counted = draw.choice([(), ("batch_size",), ("samples_seen",), ("batch_size", "num_tokens"), ("tokens_seen",)])
    step, elapsed_ns = 0, 0
    events: list[Event] = []
    has_family = draw.random() < 0.7
    seen = dict.fromkeys(("samples_seen", "tokens_seen"), 0.0)
    for _ in range(draw.randint(5, 60)):
        seq = len(events)
        kind = ("train_begin", "step_end")[seq] if seq < 2 else draw.choice(["step_end"] * 8 + list(SERIES))
        if draw.random() < 0.03 and seq > 1:
            revised = {
                "total_steps": draw.choice([15, 30, 60]),
                "constants": {"total_samples": 33.0, "num_params": 4.0},
            }
            events.append(Event("plan", step=step, seq=seq, elapsed_ns=elapsed_ns, attrs=revised))
            continue
        step += (1 if draw.random() < 0.9 else 3) if kind == "step_end" else 0
        elapsed_ns += draw.choice([0, 10**9, 5 * 10**8, 3 * 10**9])
        metrics = {name: _value(draw) for name in SERIES.get(kind, []) if draw.random() < 0.85}
        if kind == "step_end":
            for name in counted:
                if name in seen:
                    seen[name] += draw.choice([1, 2])
                metrics[name] = seen.get(name) or draw.choice([1.0, 2.0])
        if has_family and kind in ("step_end", "log"):
            metrics |= {f"g/{n}": _value(draw) for n in (1, 2, 10) if step > n and draw.random() < 0.7}
            metrics |= {"h/1": _value(draw)} if draw.random() < 0.5 else {}
        if clock == "metric" and kind in ("step_end", "log", "train_begin"):
            metrics["epoch"] = step / 8
        attrs = {"applied": False} if kind == "step_end" and draw.random() < 0.1 else {}
        epoch = step / 8 if clock == "fact" or (clock == "late fact" and step > 5) else None
        events.append(Event(kind, step=step, seq=seq, epoch=epoch, elapsed_ns=elapsed_ns, metrics=metrics, attrs=attrs))
        if plan.world_size == 2 and kind == "step_end" and draw.random() < 0.6:
            gathered = {f"{name}@{rank}": _value(draw) for name in ("loss", "acc") for rank in (0, 1)}
            kept = {name: value for name, value in gathered.items() if draw.random() < 0.9}
            said = Event("ranks", step=step, seq=seq + 1, epoch=epoch, elapsed_ns=elapsed_ns, metrics=kept)
            events.append(said._replace(attrs={"world_size": 2}))
    return plan, events


def _value(draw: random.Random) -> float:
    odd = draw.random()
    if odd < 0.05:
        return draw.choice([math.nan, math.inf, -math.inf])
    return draw.choice([0.0, 0.5, 1.0, 1.25, 2.0, 3.0, 4.0]) if odd < 0.6 else draw.uniform(0, 4)

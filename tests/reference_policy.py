"""Policies a second time, written from the pages of the language alone: a file's text and events in, decisions out.

One object per controller keeps all that it ever answered and decided; nothing is compiled or forgotten.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import yaml
from reference_arithmetic import Undefined
from reference_language import (
    ADMITTED,
    OF_RANKS,
    Entry,
    Evaluation,
    Moment,
    World,
    called,
    expression_series,
    first_series,
    is_of_family,
    patterns,
)
from reference_metrics import METRICS, epoch_of
from reference_parsing import Clocks, Definitions, Span, braces, calls_ranks, parsed, readable

from steptape.store.events import Event, is_loop_kind
from steptape.store.plan import Plan


class Outcome(NamedTuple):
    """What happened at one event: ``what`` is ``decision``, ``error`` or ``cleared``."""

    what: str
    seq: int
    step: int
    controller: str
    trigger: str = ""
    operations: tuple[str, ...] = ()
    values: Mapping[str, Any] = {}
    message: str = ""
    member: str = ""
    stage: int = 0


class Answer(NamedTuple):
    """What a rule said at an event: true, false, or None for undefined."""

    place: int
    result: bool | None


@dataclass
class Controller:
    """One controller, or that of one member of ``for_each``, with all that it remembers."""

    place: int
    given: Mapping[str, Any]
    rule: ast.expr
    clear: ast.expr | None
    said: Sequence[ast.expr]
    patience: tuple[float, bool] | None
    reads_ranks: bool
    #: The pattern of ``for_each`` and the series that it means here.
    members: Mapping[Any, Any] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    decisions: list[tuple[Moment, Clocks]] = field(default_factory=list)
    counts: dict[Any, int] = field(default_factory=dict)
    true_since: dict[Any, Clocks] = field(default_factory=dict)
    seen: dict[Any, int] = field(default_factory=dict)
    listed: tuple[int, str] = (0, "")
    is_raised: bool = False
    raised_at: int = -1
    raised_at_step: int = 0
    clear_asked_at: int = -1
    cleared_at: int = -1
    stage: int = 0
    in_stage: int = 0
    in_all: int = 0

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.given["name"])

    @property
    def member(self) -> str:
        """The name of its member; empty without ``for_each``."""
        return "".join(key[0] for key in self.members.values())


class Reference:
    """One policy over one run; ``observe`` each event, in order."""

    def __init__(self, text: str | Mapping[str, Any], plan: Plan | None = None) -> None:
        file = yaml.load(text, yaml.CSafeLoader) if isinstance(text, str) else text
        self.plan = plan or Plan()
        self.metrics = {
            str(entry["name"]): METRICS[entry["class"]](entry.get("arguments") or {})
            for entry in file.get("controller_metrics") or []
        }
        states = file.get("states") or {}
        self.classes = {
            name: given if isinstance(given, dict) else {"triggers": ["on_step_end"], "classes": given}
            for name, given in states.items()
        }
        self.world = World(file.get("params") or {}, dict.fromkeys(states), frozenset(self.metrics))
        self.world.asked = self._asked
        self.changes: dict[str, list[tuple[int, Moment, str]]] = {name: [] for name in states}
        self._define(file.get("define") or {})
        self.cooldowns: dict[str, Span] = {name: Span.of(span) for name, span in (file.get("cooldowns") or {}).items()}
        self.held: dict[str, Clocks] = {}
        self.failed: set[Any] = set()
        self.given = [self._controller(place, entry) for place, entry in enumerate(file["controllers"])]
        #: The controllers of each entry of the file: one, or one for each member so far.
        self.groups = [[] if "for_each" in one.given else [one] for one in self.given]
        self.derived = self._expressions()
        self.kinds: dict[str, str] = {}
        self.newest: dict[str, float] = {}
        self.gathered: dict[str, float] = {}
        self.reached_shares: dict[Any, set[Fraction]] = {}
        self.index = -1
        self.asking: Controller | None = None
        self.epoch_of_step: float | None = None
        #: Whether what was said and decided at this event is past: to messages, and to ``admit``.
        self.is_after = False
        self.reached = 0
        self.reached_epoch: float | None = None
        self.clocks = Clocks(0, 0, 0.0)
        self.before_attempt_ns, self.elapsed_ns, self.attempt = 0, 0, 0
        self.sums = {"batch_size": 0.0, "num_tokens": 0.0}
        self.updates = {True: 0, False: 0}
        self._facts(Event("init_end", seq=-1))
        self._constants(self.plan.constants)

    # --- the file ---

    def _define(self, given: Mapping[str, Any]) -> None:
        self.admitted = {name: entry for name, entry in given.items() if isinstance(entry, dict) and "admit" in entry}
        self.world.admitted = frozenset(self.admitted)
        plain = {name: entry for name, entry in given.items() if name not in self.admitted}
        self.texts = {name: str(entry["value"] if isinstance(entry, dict) else entry) for name, entry in plain.items()}
        self.definitions = Definitions({name: parsed(text) for name, text in self.texts.items()})
        self.read: dict[Any, ast.expr] = {}

    def _number(self, given: Any) -> Any:
        return self.world.params[given] if isinstance(given, str) else given

    def _tree(self, text: Any) -> ast.expr:
        if text not in self.read:
            self.read[text] = self.definitions.replaced(parsed(text))
        return self.read[text]

    def _controller(self, place: int, given: Mapping[str, Any]) -> Controller:
        patience = None
        if (tolerated := given.get("patience")) is not None:
            resets = tolerated.get("mode") != "no_reset_on_failure"
            patience = (self._number(tolerated.get("patience_threshold", 1)), resets)
        if "for" in given and not isinstance(given["for"], dict):
            patience = (self._number(given["for"]) - 1, True)
        rule, clear = self._tree(given["rule"]), self._tree(given["clear"]) if "clear" in given else None
        said = [self._tree(part) for part, _ in braces(str(given.get("message", ""))) if part]
        trees = [rule, *([clear] if clear else []), *said]
        return Controller(place, given, rule, clear, said, patience, any(map(calls_ranks, trees)))

    def _expressions(self) -> dict[str, ast.expr]:
        """Return the expressions that are read as series, those inside others first."""
        trees = [self._tree(name) for name in self.texts]
        for entry in self.admitted.values():
            trees += [self._tree(entry["value"]), self._tree(entry["admit"])]
        for classes in self.classes.values():
            trees += [self._tree(text) for entry in classes["classes"] for text in entry.values()]
        for one in self.given:
            trees += [one.rule, *([one.clear] if one.clear else []), *one.said]
        found = [tree for root in trees for tree in expression_series(root, self.world)]
        return {ast.dump(tree): tree for tree in found}

    # --- one event ---

    def start(self) -> list[Outcome]:
        """Ask the controllers at ``on_init_end``."""
        return self._controllers(Event("init_end", seq=-1))

    def observe(self, event: Event) -> list[Outcome]:
        """Take the next event; return what it brought about, in order."""
        if event.kind == "plan":
            self.plan = self.plan.updated(event.attrs)
            self._constants(event.attrs.get("constants") or {})
        if not is_loop_kind(event.kind):
            return []
        self.index += 1
        self._clocks(event)
        self._facts(event)
        taken = self._series(event)
        for name, metric in self.metrics.items():
            if event.kind in metric.kinds:
                self.world.metrics[name] = metric.compute(event, self.plan)
        self._members()
        outcomes = self._states(event) + self._controllers(event) + self._admit(taken, event)
        if event.kind == "step_end" and self.plan.world_size == 1:
            self.world.ranks = [{**(self.world.ranks[0] if self.world.ranks else {}), **self.gathered}]
            self.gathered = {}
            outcomes += self._judge_ranks(event)
        return outcomes

    def _constants(self, given: Mapping[str, float]) -> None:
        """Let the series of constants take their values, unless events carry a series of the name."""
        for name, value in given.items():
            if name not in self.kinds:
                self._append((name, None), float(value))

    def _judge_ranks(self, event: Event) -> list[Outcome]:
        """Ask the controllers that read all ranks as at an event of its own."""
        self.index += 1
        self.world.now = self.world.now._replace(place=self.index)
        return self._controllers(event, of_ranks=True)

    def _clocks(self, event: Event) -> None:
        if event.attempt != self.attempt:
            self.attempt, self.before_attempt_ns = event.attempt, self.before_attempt_ns + self.elapsed_ns
        self.elapsed_ns = event.elapsed_ns
        self.reached = max(self.reached, event.step)
        seconds = (self.before_attempt_ns + event.elapsed_ns) / 1e9
        self.clocks = Clocks(self.reached, self.clocks.evaluations + (event.kind == "evaluate"), seconds)
        if event.kind == "step_end":
            for name in self.sums:
                self.sums[name] += event.metrics.get(name, 0.0)
            self.updates[event.attrs.get("applied", True)] += 1
        self.newest.update(event.metrics)
        for name, value in event.metrics.items():
            if math.isfinite(self.gathered.get(name, 0.0)):
                self.gathered[name] = value

    def _seen(self, metric: str, part: str) -> float | None:
        if metric in self.newest:
            return self.newest[metric]
        return self.sums[part] if part in self.newest else None

    def _facts(self, event: Event) -> None:
        epoch, most = epoch_of(event), self.plan.max_steps()
        if event.kind == "step_end":
            self.epoch_of_step = epoch
        elif event.kind == "ranks" and epoch is None:
            epoch = self.epoch_of_step
        if epoch is not None:
            self.reached_epoch = max(self.reached_epoch or 0.0, epoch)
        progress = None
        if most is not None:
            progress = event.step / most
        elif epoch is not None and self.plan.total_epochs is not None:
            progress = epoch / self.plan.total_epochs
        samples, tokens = self._seen("samples_seen", "batch_size"), self._seen("tokens_seen", "num_tokens")
        self.world.facts = {
            "step": event.step, "epoch": epoch, "progress": progress, "max_steps": most,
            "elapsed_s": self.clocks.seconds, "samples_seen": samples, "tokens_seen": tokens,
            "world_size": self.plan.world_size, "updates_applied": self.updates[True],
            "updates_skipped": self.updates[False], "undefined": None,
        }  # fmt: skip
        self.world.now = Moment(self.index, self.reached, self.reached_epoch, self.clocks.seconds, samples, tokens)

    def _append(self, key: Any, value: float) -> None:
        self.world.history.setdefault(key, []).append(Entry(self.world.now, value))

    def _series(self, event: Event) -> set[Any]:
        taken: set[Any] = set()
        for name, value in event.metrics.items():
            bare = self.kinds.setdefault(name, event.kind) == event.kind
            for key in [(name, event.kind), *([(name, None)] if bare else [])]:
                self._append(key, value)
                taken.add(key)
        self._learning_rate(event, taken)
        self._derive(taken)
        self._ranks(event)
        return taken

    def _derive(self, taken: set[Any]) -> None:
        """Let the series of expressions take a value whose first series took one."""
        for tree in self.derived.values():
            free = patterns(tree, self.world)
            homes = [{pattern: member} for pattern in free for member in self.world.members(pattern)]
            for members in homes if free else [{}]:
                here = Evaluation(self.world, members, in_series=True)
                first = first_series(tree, self.world)
                if here.key(tree) not in taken and first is not None and not taken.isdisjoint(here.all_keys(first)):
                    self._take(here, tree, here.key(tree), taken)

    def _take(self, here: Evaluation, tree: ast.expr, key: Any, taken: set[Any]) -> None:
        try:
            value = float(here.value(tree))
        except Undefined:
            return
        except Exception:
            value = math.nan
        self._append(key, value)
        taken.add(key)

    def _admit(self, taken: set[Any], event: Event) -> list[Outcome]:
        """Let the admitted series take their values, and then the expressions that begin with one."""
        outcomes: list[Outcome] = []
        ready: list[tuple[str, float]] = []
        for name, entry in self.admitted.items():
            tree, here = self._tree(entry["value"]), Evaluation(self.world, in_series=True)
            first = first_series(tree, self.world, but_admitted=True)
            if first is None or taken.isdisjoint(here.all_keys(first)):
                continue
            for value in self._value_to_admit(here, tree):
                self.is_after = True
                is_admitted, failed = self._condition(self._tree(entry["admit"]))
                self.is_after = False
                if failed and name not in self.failed:
                    self.failed.add(name)
                    outcomes.append(Outcome("error", event.seq, event.step, name, f"on_{event.kind}"))
                ready += [(name, value)] if is_admitted else []
        for name, value in ready:
            self._append((name, ADMITTED), value)
        self._derive({(name, ADMITTED) for name, _ in ready})
        return outcomes

    def _value_to_admit(self, here: Evaluation, tree: ast.expr) -> list[float]:
        try:
            return [float(here.value(tree))]
        except Undefined:
            return []
        except Exception:
            return [math.nan]

    def _learning_rate(self, event: Event, taken: set[Any]) -> None:
        """Take a ``learning_rate`` for ``lr`` where that came first."""
        if "lr" in event.metrics or ("learning_rate", None) not in taken:
            return
        if self.kinds.setdefault("lr", "learning_rate") == "learning_rate":
            self._append(("lr", None), event.metrics["learning_rate"])
            taken.add(("lr", None))

    def _ranks(self, event: Event) -> None:
        if event.kind == "ranks":
            found = dict(enumerate(self.world.ranks))
            for name, value in event.metrics.items():
                metric, _, rank = name.rpartition("@")
                found[int(rank)] = {**found.get(int(rank), {}), metric: value}
            self.world.ranks = [found.get(rank, {}) for rank in range(max(found, default=-1) + 1)]

    def _members(self) -> None:
        """Add the controllers of new members, by name."""
        for template, group in zip(self.given, self.groups, strict=True):
            if "for_each" in template.given:
                pattern = (template.given["for_each"], None)
                known = {one.member for one in group}
                for key in self.world.members(pattern):
                    if key[0] not in known:
                        new = self._controller(template.place, template.given)
                        new.members = {pattern: key}
                        group.append(new)
                group.sort(key=lambda one: one.member)

    def _states(self, event: Event) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for name, given in self.classes.items():
            if f"on_{event.kind}" not in given["triggers"]:
                continue
            trees = [(found, self._tree(text)) for entry in given["classes"] for found, text in entry.items()]
            self._milestones(("state", name), [tree for _, tree in trees])
            for found, tree in trees:
                result, failed = self._condition(tree)
                if failed and ("state", name) not in self.failed:
                    self.failed.add(("state", name))
                    outcomes.append(Outcome("error", event.seq, event.step, name, f"on_{event.kind}"))
                if result is not False:
                    self._enter(name, found if result else self.world.states[name])
                    break
        return outcomes

    def _enter(self, name: str, found: str | None) -> None:
        if found is not None and found != self.world.states[name]:
            self.changes[name].append((self.index, self.world.now, found))
            self.world.states = {**self.world.states, name: found}

    # --- milestones ---

    def _milestones(self, owner: Any, trees: Sequence[ast.expr]) -> None:
        """Say which milestones in these trees are reached at this event, for their owner."""
        calls = {ast.dump(part): part for tree in trees for part in ast.walk(tree) if called(part) == "milestone"}
        self.world.milestones = {key: self._is_reached(owner, call) for key, call in calls.items()}

    def _is_reached(self, owner: Any, call: ast.AST) -> bool | None:
        words = {word.arg: word.value for word in call.keywords}  # type: ignore[attr-defined]
        unit = words["of"].value if "of" in words else "steps"
        fact = {"steps": "step", "epochs": "epoch", "samples": "samples_seen", "tokens": "tokens_seen"}[unit]
        at, length = self.world.facts[fact], self._length(unit)
        if at is None or length is None or not math.isfinite(length) or length <= 0:
            return None
        done = self.reached_shares.setdefault((owner, ast.dump(call)), set())
        points = {share: share * Fraction(length) for share in self._shares(words)}
        new = {
            share
            for share, point in points.items()
            if share not in done and at >= (float(point) if unit == "epochs" else math.ceil(point))
        }
        done |= new
        return bool(new)

    def _length(self, unit: str) -> float | None:
        if unit == "steps":
            return self.plan.max_steps()
        return self.plan.total_epochs if unit == "epochs" else self.plan.constants.get(f"total_{unit}")

    def _shares(self, words: Mapping[str, ast.expr]) -> list[Fraction]:
        if "every" in words:
            share = self._exact(words["every"])
            return [share * number for number in range(1, math.floor(1 / share) + 1)]
        given = words["at"]
        return [self._exact(part) for part in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])]

    def _exact(self, node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            left, right = self._exact(node.left), self._exact(node.right)
            exact = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
            return left / right if isinstance(node.op, ast.Div) else exact[type(node.op)]
        return Fraction(str(Evaluation(self.world).value(node)))

    # --- controllers ---

    def _controllers(self, event: Event, *, of_ranks: bool = False) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for template, group in zip(self.given, self.groups, strict=True):
            triggers = list(enumerate(template.given["triggers"]))
            asked = [pair for pair in triggers if self._is_asked(template, pair[1], event, of_ranks=of_ranks)]
            if asked:
                trees = [template.rule, *([template.clear] if template.clear else []), *template.said]
                self._milestones(template.place, trees)
            for (listed, trigger), one in itertools.product(asked, group):
                self.asking, one.listed = one, (listed, event.kind)
                shown = f"on_{event.kind}" if trigger.startswith("on_state:") else trigger
                outcomes += self._ask(one, shown, event)
        self.asking = None
        return outcomes

    def _is_asked(self, one: Controller, trigger: str, event: Event, *, of_ranks: bool) -> bool:
        waits = one.reads_ranks and trigger == "on_step_end"
        if of_ranks:
            return waits or (one.reads_ranks and trigger == "on_ranks")
        return event.kind == "ranks" if waits else self._triggers(trigger, event)

    def _triggers(self, trigger: str, event: Event) -> bool:
        if trigger.startswith("on_state:"):
            changes = self.changes[trigger.removeprefix("on_state:")]
            return bool(changes) and changes[-1][0] == self.index and event.kind != "init_end"
        return trigger == f"on_{event.kind}"

    def _ask(self, one: Controller, trigger: str, event: Event) -> list[Outcome]:
        outcomes = self._clear(one, trigger, event)
        counts = not one.is_raised and one.cleared_at != self.index
        if not self._is_open(one, event):
            return outcomes
        result = self._result(one, one.rule, trigger, event, outcomes)
        values = self._readings(str(one.given["rule"]), one)
        one.answers.append(Answer(self.index, result))
        if counts and self._passes(one, result):
            outcomes.append(self._decide(one, trigger, event, values))
        return outcomes

    def _values_of_first(self, one: Controller) -> int:
        """Return how many values the first series of a rule has had."""
        series = first_series(one.rule, self.world)
        keys = Evaluation(self.world, one.members).all_keys(series) if series is not None else []
        return sum(len(self.world.history.get(key, [])) for key in keys)

    def _result(
        self, one: Controller, tree: ast.expr, trigger: str, event: Event, outcomes: list[Outcome]
    ) -> bool | None:
        """Return a condition's result, and note the first failure of the entry in the file."""
        result, failed = self._condition(tree, one)
        if failed and one.place not in self.failed:
            self.failed.add(one.place)
            outcomes.append(Outcome("error", event.seq, event.step, one.name, trigger))
        return result

    def _condition(self, tree: ast.expr, one: Controller | None = None) -> tuple[bool | None, bool]:
        """Return a condition's result, and whether it failed."""
        try:
            result = self._value(tree, one)
        except Undefined:
            return None, False
        except Exception:
            return None, True
        return (result, False) if isinstance(result, bool) else (None, True)

    def _value(self, tree: ast.expr, one: Controller | None, **local: Any) -> Any:
        members = one.members if one else {}
        return Evaluation(self.world, members).value(tree, {**local, **({"member": one.member} if one else {})})

    def _clear(self, one: Controller, trigger: str, event: Event) -> list[Outcome]:
        outcomes: list[Outcome] = []
        if one.clear is None or not one.is_raised or self.index in (one.raised_at, one.clear_asked_at):
            return outcomes
        one.clear_asked_at = self.index
        if self._result(one, one.clear, trigger, event, outcomes):
            one.is_raised, one.cleared_at = False, self.index
            one.counts, one.true_since = {}, {}
            values = self._readings(str(one.given["clear"]), one)
            said = ((), values, str(one.raised_at_step), one.member)
            outcomes.append(Outcome("cleared", event.seq, event.step, one.name, trigger, *said))
        return outcomes

    def _is_open(self, one: Controller, event: Event) -> bool:
        """Whether ``between``, ``requires`` and ``every`` let the rule be evaluated."""
        is_new = True
        if "every" in one.given:
            values = self._values_of_first(one)
            is_new = values > one.seen.get(one.listed, 0)
            one.seen[one.listed] = values
        low, high = (self._number(bound) for bound in one.given.get("between", (None, None)))
        if (low is not None and event.step < low) or (high is not None and event.step > high):
            return False
        for name in one.given.get("requires", ()):
            form = ".+".join(re.escape(part) for part in name.split("*"))
            if not any(re.fullmatch(form, seen) for seen in self.newest):
                return False
        return is_new

    def _passes(self, one: Controller, result: bool | None) -> bool:
        """Whether a result passes the gates, in their order."""
        given, pair = one.given, one.listed
        if result is None:
            return False
        if result is False:
            one.true_since.pop(pair, None)
            if one.patience is not None and one.patience[1]:
                one.counts[pair] = 0
            return False
        if isinstance(given.get("for"), dict):
            since = one.true_since.setdefault(pair, self.clocks)
            if not Span.of(given["for"]).has_passed(since, self.clocks):
                return False
        if (given.get("once") and one.decisions) or ("escalate" in given and self._is_capped(one)):
            return False
        one.counts[pair] = one.counts.get(pair, 0) + 1
        if self._is_cooling(one):
            return False
        return one.patience is None or one.counts[pair] > one.patience[0]

    def _is_capped(self, one: Controller) -> bool:
        escalate = one.given["escalate"]
        span = Span.of(escalate["forget_after"]) if "forget_after" in escalate and one.decisions else None
        if span is not None and span.has_passed(one.decisions[-1][1], self.clocks):
            one.stage = one.in_stage = one.in_all = 0
        return "cap" in escalate and one.in_all >= escalate["cap"]

    def _is_cooling(self, one: Controller) -> bool:
        given = one.given.get("cooldown")
        if given is None:
            return False
        if given in self.cooldowns if isinstance(given, str) else False:
            return given in self.held and not self.cooldowns[given].has_passed(self.held[given], self.clocks)
        span = Span.of(self._number(given))
        return bool(one.decisions) and not span.has_passed(one.decisions[-1][1], self.clocks)

    def _decide(self, one: Controller, trigger: str, event: Event, values: Mapping[str, Any]) -> Outcome:
        given = one.given
        one.counts[one.listed] = 0
        one.true_since[one.listed] = self.clocks
        operations, stage = self._stage(one)
        one.decisions.append((self.world.now, self.clocks))
        if one.clear is not None:
            one.is_raised, one.raised_at, one.raised_at_step = True, self.index, event.step
        self.is_after = True
        message = self._message(one, stage)
        self.is_after = False
        if given.get("cooldown") in self.cooldowns if isinstance(given.get("cooldown"), str) else False:
            self.held[given["cooldown"]] = self.clocks
        said = (tuple(operations), values, message, one.member, stage)
        return Outcome("decision", event.seq, event.step, one.name, trigger, *said)

    def _stage(self, one: Controller) -> tuple[Sequence[str], int]:
        escalate = one.given.get("escalate")
        if escalate is None:
            return one.given["operations"], 0
        stages, number = escalate["stages"], one.stage
        one.in_all += 1
        one.in_stage += 1
        if one.in_stage >= stages[number].get("times", 1):
            if number + 1 < len(stages):
                one.stage, one.in_stage = number + 1, 0
            elif escalate.get("cycle"):
                one.stage, one.in_stage = 0, 0
        return stages[number]["operations"], number + 1

    # --- what rules ask of states and controllers ---

    def _asked(self, function: str, name: str) -> Any:
        if name in self.changes and function in ("age", "previous"):
            return self._asked_state(function, self.changes[name])
        named = [one for one in itertools.chain(*self.groups) if one.name == name]
        if self.asking is not None and self.asking.name == name and not self.world.depth_of_families:
            named = [self.asking]
        if function == "fired_now":
            return any(at.place == self.index for one in named for at, _ in one.decisions)
        now = self.index + self.is_after
        decided = [at for one in named for at, _ in one.decisions if at.place < now]
        if function == "times_fired":
            return len(decided)
        if function == "steps_since":
            if not decided:
                raise Undefined
            return self.world.now.step - max(at.step for at in decided)
        return max((streak(one.answers) for one in named), default=0)

    def _asked_state(self, function: str, changes: Sequence[tuple[int, Moment, str]]) -> Any:
        if len(changes) < (1 if function == "age" else 2):
            raise Undefined
        return self.world.now.step - changes[-1][1].step if function == "age" else changes[-2][2]

    # --- what a decision says ---

    def _is_closed(self, node: ast.AST) -> bool:
        """Whether what is inside a call is not shown."""
        if called(node) in ("series", *OF_RANKS):
            return True
        return isinstance(node, ast.Call) and is_of_family(self.definitions.replaced(node), self.world)

    def _readings(self, text: str, one: Controller, *, is_defined: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = {}
        source = f"({text.strip()}\n)"
        root = ast.parse(source, mode="eval").body
        for node in readable(root, self._is_closed):
            name = node.id if isinstance(node, ast.Name) else ""
            if name in self.texts:
                found = {**self._readings(self.texts[name], one, is_defined=True), **found}
            if (is_defined and node is root) or name in (*self.metrics, "member"):
                continue
            key = re.sub(r"\s+", " ", ast.get_source_segment(source, node) or "")
            try:
                value = self._value(self._tree(key), one)
            except Exception:
                continue
            if value is None or (isinstance(value, (bool, int, float, str)) and len(str(value)) <= 200):
                found[key] = value
        return found

    def _message(self, one: Controller, stage: int) -> str:
        parts = []
        for expression, rest in braces(str(one.given.get("message", ""))):
            if not expression:
                parts.append(rest)
                continue
            try:
                parts.append(format(self._value(self._tree(expression), one, stage=stage), rest))
            except Undefined:
                parts.append(f"<missing {expression}>")
            except Exception as error:
                parts.append(f"<{type(error).__name__} {expression}>")
        return "".join(parts)


def streak(answers: Sequence[Answer]) -> int:
    """Return how many answers in a row were true, without the undefined ones."""
    known = [answer.result for answer in answers if answer.result is not None]
    return len(list(itertools.takewhile(bool, reversed(known))))

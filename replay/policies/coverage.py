"""Coverage: what the clauses of a policy came to over recorded runs. What was never true was never tried.

Each clause of a rule, and the rule itself, is asked by itself at the triggers of its controller, in a copy of
the policy that orders nothing: a clause that the one before it hides is seen all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...rules.engine.engine import Engine
from ...rules.policy_file.policy import Policy
from ...store.events import BEFORE_STREAM
from ...store.garbage import collection_paused
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..cache import Cache, cached_answer, policy_identity
from ..run_pool import RunPool
from ..runs.event_stream import event_stream
from ..runs.history import read_lineage
from ..runs.replaying import observed_in
from ..value_encoding import ValueCodec
from .conduct import Conduct, Observer
from .probes import ClauseAnswer, Probe, clauses, probed

_CODEC = ValueCodec(tuple[Conduct, int])


@dataclass(frozen=True, slots=True)
class ClauseCoverage:
    """What one clause came to.

    Attributes:
        text: As the rule has it; the whole rule for the rule itself.
        true_runs, false_runs: In how many runs it was ever true, and ever false.
        runs: Of how many.
    """

    text: str
    true_runs: int
    false_runs: int
    runs: int

    @property
    def is_evaluable(self) -> bool:
        """Whether it ever had an answer."""
        return bool(self.true_runs or self.false_runs)


@dataclass(frozen=True, slots=True)
class ControllerCoverage:
    """What one controller came to.

    Attributes:
        controller: Its name.
        fired_runs: In how many runs it decided anything.
        rule: Its rule as a whole.
        clauses: The operands of its ``and``, ``or`` and ``not``, in order; empty for a rule without any.
        decisions: How often it fired, up to the end of each run under the policy; likewise what follows.
        flaps: How often it fired anew after its rule had ceased to be true since it last fired.
        pending_steps: Updates during which its rule was true and patience or ``for`` held it back.
    """

    controller: str
    fired_runs: int
    rule: ClauseCoverage
    clauses: tuple[ClauseCoverage, ...]
    decisions: int = 0
    flaps: int = 0
    pending_steps: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a policy came to over runs.

    Attributes:
        controllers: One for each controller, in file order.
        runs: How the controllers conducted themselves in each run.
        read_events: Events that were read to find out.
    """

    controllers: tuple[ControllerCoverage, ...] = ()
    runs: tuple[Conduct, ...] = ()
    read_events: int = 0


def coverage_of(
    policy: Policy,
    runs: Sequence[Run],
    readers: RunPool,
    cache: Cache | None = None,
    endings: Sequence[int | None] | None = None,
) -> Coverage:
    """What the controllers of a policy, and the clauses of each, came to over runs.

    Args:
        policy: The policy.
        runs: Runs that can be read.
        readers: What to read them with.
        cache: Where to look for what was seen before.
        endings: For each run, the index of the last event that it would have come to under the policy; None for all.
    """
    asked = list(zip(runs, endings or [None] * len(runs), strict=True))
    found = list(readers.mapped(_Conducts(policy, cache), asked))
    conducts = tuple(conduct for conduct, _ in found)
    seen = Counter(name for conduct in conducts for name in conduct.answered)
    controllers = []
    for index, controller in enumerate(policy.controllers):
        own = [conduct.controllers[index] for conduct in conducts]
        texts = [controller.rule.text, *clauses(controller)]
        rule, *parts = [_coverage(text, index, number, seen, len(runs)) for number, text in enumerate(texts)]
        controllers.append(
            ControllerCoverage(
                controller.name,
                seen[controller.name],
                rule,
                tuple(parts),
                sum(one.decisions for one in own),
                sum(one.flaps for one in own),
                sum(one.pending_steps for one in own),
            )
        )
    return Coverage(tuple(controllers), conducts, sum(events for _, events in found))


@dataclass(frozen=True, slots=True)
class _Conducts:
    """What a process does to each run: the conduct of the controllers up to an event, and the events that it read."""

    policy: Policy
    cache: Cache | None

    def __call__(self, asked: tuple[Run, int | None]) -> tuple[Conduct, int]:
        run, until = asked
        identity = policy_identity(self.policy)
        about = None if identity is None else ("coverage", until, *identity)
        (conduct, events), was_kept = cached_answer(self.cache, run, about, _CODEC, lambda: self._read(run, until))
        return conduct, 0 if was_kept else events

    def _read(self, run: Run, until: int | None) -> tuple[Conduct, int]:
        with collection_paused():
            return run.read(lambda snapshot: self._conduct(snapshot, until))

    def _conduct(self, snapshot: Snapshot, until: int | None) -> tuple[Conduct, int]:
        with_probes, probes = probed(self.policy)
        stream = event_stream(read_lineage(snapshot, samples=self.policy.reads_samples)[0])
        engine = Engine(with_probes, snapshot.info.last.plan)
        observer = Observer(self.policy, probes, until)
        observer.observe(BEFORE_STREAM, 0, engine.start())
        for index, event, outcomes in observed_in(engine, stream, everything=True):
            observer.observe(index, event.step, outcomes)
        return observer.conduct(), len(stream.kinds)


def _coverage(text: str, controller: int, number: int, seen: Counter[str], runs: int) -> ClauseCoverage:
    true_runs, false_runs = (
        seen[Probe(controller, number, answer).name] for answer in (ClauseAnswer.TRUE, ClauseAnswer.FALSE)
    )
    return ClauseCoverage(" ".join(text.split()), true_runs, false_runs, runs)

"""Coverage: in how many runs each clause of a policy was ever true and ever false.

A clause that was never true was never tested. A copy of the policy without operations evaluates each rule, and each of
its clauses separately, at the controller's triggers. A clause that short-circuiting would skip is evaluated all the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...rules.engine.engine import Engine
from ...rules.policy_file.policy import Policy
from ...store.events import BEFORE_STREAM
from ...store.own_process import collection_paused
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..run_pool import RunPool
from ..runs.event_stream import EventStream, Renames, read_lineage
from ..runs.replaying import observed_in
from .conduct import Conduct, Observer
from .probes import ClauseAnswer, Probe, clauses, probed


@dataclass(frozen=True, slots=True)
class ClauseCoverage:
    """The coverage of one clause.

    Attributes:
        text: The clause in the rule's text; the whole rule for the rule itself.
        true_runs, false_runs: Number of runs in which it was ever true, and ever false.
        runs: Number of all runs.
    """

    text: str
    true_runs: int
    false_runs: int
    runs: int

    @property
    def is_evaluable(self) -> bool:
        """Whether the clause was ever true or false."""
        return bool(self.true_runs or self.false_runs)


@dataclass(frozen=True, slots=True)
class ControllerCoverage:
    """The coverage of one controller.

    Attributes:
        controller: Its name.
        fired_runs: Number of runs in which it decided anything.
        rule: Coverage of its rule as a whole.
        clauses: Coverage of the operands of its ``and``, ``or`` and ``not``, in order; empty for a rule without any.
        decisions: How often it fired, up to the end of each run under the policy; the next two count likewise.
        flaps: How often it fired again after its rule had turned false since the last time.
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
    """The coverage of a policy over runs.

    Attributes:
        controllers: One entry per controller, in file order.
        runs: The conduct of the controllers in each run.
        read_events: Events read for it.
    """

    controllers: tuple[ControllerCoverage, ...] = ()
    runs: tuple[Conduct, ...] = ()
    read_events: int = 0


def coverage_of(
    policy: Policy,
    runs: Sequence[Run],
    readers: RunPool,
    endings: Sequence[int | None] | None = None,
    renames: Renames = (),
) -> Coverage:
    """Return the coverage of a policy's controllers and their clauses over runs.

    Args:
        policy: The policy.
        runs: Readable runs.
        readers: The pool to read them with.
        endings: For each run, the index of its last event under the policy; None for all events.
        renames: The metrics to rename.
    """
    asked = list(zip(runs, endings or [None] * len(runs), strict=True))
    found = list(readers.mapped(_Conducts(policy, *probed(policy), renames), asked))
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
    """The function mapped over runs: returns the conduct up to an event, and the number of events read.

    Attributes:
        policy: The policy.
        with_probes, probes: The policy with its probes, which takes longer to parse than a small run to read.
        renames: The metrics to rename.
    """

    policy: Policy
    with_probes: Policy
    probes: Mapping[str, Probe]
    renames: Renames

    def __call__(self, asked: tuple[Run, int | None]) -> tuple[Conduct, int]:
        run, until = asked
        with collection_paused():
            return run.read(lambda snapshot: self._conduct(snapshot, until))

    def _conduct(self, snapshot: Snapshot, until: int | None) -> tuple[Conduct, int]:
        stream = self._stream(snapshot)
        engine = Engine(self.with_probes, snapshot.info.last.plan, stream.plans)
        observer = Observer(self.policy, self.probes, until)
        observer.observe(BEFORE_STREAM, 0, engine.start())
        for index, event, outcomes in observed_in(engine, stream, everything=True):
            observer.observe(index, event.step, outcomes)
        return observer.conduct(), len(stream.kinds)

    def _stream(self, snapshot: Snapshot) -> EventStream:
        return read_lineage(
            snapshot, samples=self.policy.reads_samples, renames=self.renames, ranks=self.policy.reads_ranks
        )[0]


def _coverage(text: str, controller: int, number: int, seen: Counter[str], runs: int) -> ClauseCoverage:
    true_runs, false_runs = (
        seen[Probe(controller, number, answer).name] for answer in (ClauseAnswer.TRUE, ClauseAnswer.FALSE)
    )
    return ClauseCoverage(" ".join(text.split()), true_runs, false_runs, runs)

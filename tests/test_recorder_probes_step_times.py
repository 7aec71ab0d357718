"""The time of an update splits into waiting and computing, whatever lies between updates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steptape.recorder.probes.data_and_time import StepTimes, UpdateTimes


class Loop:
    """A loop with a scripted clock."""

    def __init__(self) -> None:
        self.now_ns = self.spans_ns = self.probes_ns = 0
        self.times = StepTimes(lambda: self.spans_ns, lambda: self.probes_ns)

    def passes(self, ns: int) -> None:
        """Let time pass outside spans."""
        self.now_ns += ns

    def span(self, ns: int) -> None:
        """Spend time in a span."""
        self.passes(ns)
        self.spans_ns += ns

    def probe(self, ns: int) -> None:
        """Spend time in probes."""
        self.passes(ns)
        self.probes_ns += ns

    def fetch(self, ns: int) -> None:
        """Wait for a batch in a measured ``next``."""
        began_ns = self.now_ns
        self.passes(ns)
        self.times.waited(began_ns, self.now_ns, self.spans_ns)

    def forward(self) -> None:
        """Begin a forward pass in training."""
        self.times.begin_forward(self.now_ns)

    def update(self, wait_ns: int, busy_ns: int) -> None:
        """Wait, run a forward pass, compute, and end the update."""
        self.passes(wait_ns)
        self.forward()
        self.passes(busy_ns)
        self.times.end_update(self.now_ns)


def test_the_start_of_the_loader_counts_nowhere() -> None:
    """The first update begins with its first forward pass."""
    loop = Loop()

    loop.update(1_000_000, 7)
    loop.update(2, 7)

    assert loop.times.pop_sums() == UpdateTimes(2, 16, 2)


def test_sums_begin_anew_at_each_emission() -> None:
    """No update counts twice."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    loop.update(3, 5)

    assert loop.times.pop_sums() == UpdateTimes(1, 8, 3)
    assert loop.times.pop_sums() == UpdateTimes()


def test_the_wait_is_that_of_the_loader_where_it_is_measured() -> None:
    """Every batch of an update counts, and what else the loop does between updates is computing."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    loop.passes(10)
    loop.fetch(4)
    loop.forward()
    loop.fetch(6)
    loop.forward()
    loop.passes(20)
    loop.times.end_update(loop.now_ns)

    assert loop.times.pop_sums() == UpdateTimes(1, 40, 10)


def test_spans_and_probes_belong_to_no_update() -> None:
    """Wherever they lie: before the first forward pass or after it, in the loader or around an evaluation."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    loop.passes(3)
    loop.times.evaluate(loop.now_ns)
    loop.span(1000)
    loop.forward()
    loop.passes(4)
    loop.span(500)
    loop.probe(30)
    loop.passes(2)
    loop.times.end_update(loop.now_ns)

    assert loop.times.pop_sums() == UpdateTimes(1, 9, 3)


def test_a_loader_that_is_read_within_a_span_is_not_waited_for() -> None:
    """Such as that of an evaluation."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    began_ns, spans_ns = loop.now_ns, loop.spans_ns
    loop.span(100)
    loop.times.waited(began_ns, loop.now_ns, spans_ns)
    loop.update(1, 5)

    assert loop.times.pop_sums() == UpdateTimes(1, 6, 0)


def test_an_evaluation_outside_a_span_takes_the_gap_before_the_next_forward_pass_with_it() -> None:
    """Nothing shows where it ended."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    loop.passes(100)
    loop.times.evaluate(loop.now_ns)
    loop.passes(1000)
    loop.update(0, 5)
    loop.update(2, 5)

    assert loop.times.pop_sums() == UpdateTimes(2, 12, 2)


def test_an_update_may_be_ended_later_than_it_ended() -> None:
    """With the totals of that moment. What came since belongs to the next update."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    loop.passes(2)
    loop.forward()
    loop.passes(5)
    ended_ns, totals = loop.now_ns, loop.times.totals()
    loop.span(1000)
    loop.fetch(3)
    loop.times.end_update(ended_ns, totals)
    loop.update(0, 5)

    assert loop.times.pop_sums() == UpdateTimes(2, 15, 3)


def test_an_evaluation_between_an_update_and_its_late_end_takes_the_gap_with_it() -> None:
    """The evaluation is later than the update, although its end is noted after it."""
    loop = Loop()
    loop.update(0, 5)
    loop.times.pop_sums()
    loop.passes(2)
    loop.forward()
    loop.passes(5)
    ended_ns, totals = loop.now_ns, loop.times.totals()
    loop.times.evaluate(loop.now_ns + 1)
    loop.passes(1000)
    loop.times.end_update(ended_ns, totals)
    loop.update(0, 5)

    assert loop.times.pop_sums() == UpdateTimes(2, 12, 2)


def test_without_forward_passes_the_wait_is_unknown() -> None:
    """The time of an update is known from the second one on."""
    loop = Loop()
    for _ in range(3):
        loop.passes(10)
        loop.times.end_update(loop.now_ns)

    assert loop.times.pop_sums() == UpdateTimes(2, 20, None)


ACTIONS = st.sampled_from(["passes", "span", "fetch", "forward", "end", "evaluate", "probe"])


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 50)), max_size=60))
def test_the_wait_is_a_part_of_the_time_of_updates(actions: list[tuple[str, int]]) -> None:
    """In every order of what a loop may do."""
    loop = Loop()
    for action, ns in actions:
        if action in {"passes", "span", "fetch", "probe"}:
            getattr(loop, action)(ns)
        elif action == "forward":
            loop.forward()
        elif action == "evaluate":
            loop.times.evaluate(loop.now_ns)
        else:
            loop.times.end_update(loop.now_ns)

    times = loop.times.pop_sums()

    assert times.wait_ns is None or 0 <= times.wait_ns <= times.elapsed_ns <= loop.now_ns

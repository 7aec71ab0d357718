"""Measures a sweep of 1,000 variants over 100 runs of 10,000 steps, and checks its decisions with the event engine.

    .venv/bin/python benchmarks/sweep.py [--runs N] [--steps N] [--rounds N] [--checked N] [--store FOLDER]
    .venv/bin/python benchmarks/sweep.py --wide [--runs N] [--steps N]

Windows, thresholds, patience and a second condition vary; losses spike, and some are NaN or infinite.
Prints JSON lines:

- the sweep from columns in memory, on one core, and from the store, the best of the rounds, in wall-clock seconds and
  in seconds of processor time;
- the steps at which the variants stop, written in numpy for this policy alone, on one core and from columns in memory;
- the same pairs by the event engine (folding alone, events in memory, extrapolated from the checked ones), and by rules
  that simpleeval evaluates at each step from a parsed tree, in seconds of processor time;
- with ``--wide``, only a sweep of 100,000 variants over 1,000 runs of 200 steps that keeps no outcomes of single runs:
  its seconds, and the peak of resident memory before it, after a tenth of the runs and at the end, in MiB;
- the number of checked pairs, 1 % of all by default, that disagree with the event engine in any decision, or in the end
  of a run and its decisions by then. The exit status is 1 if one does, or if numpy stops one at another step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import simpleeval  # type: ignore[import-untyped]

from steptape import Recorder, open_store, sweep
from steptape.replay.columns.stream import Stream
from steptape.replay.columns.variant_firings import RunFirings, batches_of
from steptape.replay.columns.variants import Variant, variants_of
from steptape.replay.run_pool import Progress
from steptape.replay.runs.event_stream import EventStream, read_metrics
from steptape.replay.runs.judging import RunBackground
from steptape.replay.runs.objective import Objective
from steptape.replay.runs.replaying import replay_events
from steptape.replay.sweeps.outcomes import NO_STEP, Outcomes
from steptape.replay.sweeps.variant_outcomes import sweep_stream
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.metric_words import Mode
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run import Run

POLICY = """
params: {window: 20, spike: 2.0, tolerated: 2, floor: 1.0}
controllers:
  - name: spike
    triggers: [on_step_end]
    rule: len(loss) > window and loss > spike * mean(loss, window) and grad_norm > floor
    patience: {patience_threshold: tolerated}
    operations: [hfcontrols.should_training_stop]
"""
AXES: dict[str, list[float]] = {
    "window": [5, 10, 15, 20, 30, 40, 50, 75, 100, 200],
    "spike": [1.1, 1.25, 1.5, 2.0, 3.0],
    "tolerated": [0, 1, 2, 4, 8],
    "floor": [0.5, 1.0, 1.5, 2.0],
}
#: 100,000 variants of the same policy.
WIDE_AXES: dict[str, list[float]] = {
    "window": [*range(2, 42)],
    "spike": [1.05 + part / 20 for part in range(25)],
    "tolerated": [*range(10)],
    "floor": [part / 5 for part in range(10)],
}
OBJECTIVE = Objective("eval_loss", Mode.MIN)
METRICS = ("loss", "grad_norm", "epoch")


def write_runs(store: Path, runs: int, steps: int) -> None:
    """Write runs with a noisy falling loss that spikes for some steps now and then and is not always finite."""
    for number in range(runs):
        random = np.random.default_rng(number)
        losses = 3.0 / np.sqrt(1 + np.arange(steps) / 50) * (1 + 0.05 * random.standard_normal(steps))
        for begin in random.integers(0, steps, 12):
            losses[begin : begin + random.integers(1, 15)] *= random.choice([1.2, 1.6, 2.5, 5.0])
        losses[random.integers(0, steps, 3)] = (np.nan, np.inf, -np.inf)
        norms = np.abs(random.standard_normal(steps)) + (number % 4) / 2
        with Recorder(store, name=f"run-{number}", quiet=True) as rec:
            for step, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True), 1):
                rec.step(loss=loss, grad_norm=norm)
                if step % max(1, steps // 20) == 0:
                    rec.evaluate(eval_loss=abs(loss))
        seal(rec.folder)


def best_s(rounds: int, work: Callable[[], object]) -> dict[str, float]:
    """Return the best of some rounds, in wall-clock seconds and in seconds of processor time of all threads."""
    passed, taken = [], []
    for _ in range(rounds):
        begin, start = time.perf_counter(), time.process_time()
        work()
        passed.append(time.perf_counter() - begin)
        taken.append(time.process_time() - start)
    return {"wall_s": round(min(passed), 3), "cpu_s": round(min(taken), 3)}


class Check:
    """Compares columns and event engine on pairs of a variant and a run.

    Attributes:
        disagreed: Number of pairs that disagreed.
        engine_s: Seconds of processor time in the event engine.
    """

    def __init__(self) -> None:
        self.disagreed = 0
        self.engine_s = 0.0

    def run(
        self, stream: EventStream, events: Sequence[Event], outcomes: Outcomes, chosen: Mapping[int, Variant]
    ) -> None:
        """Check some variants, by number, on one run."""
        plan = Plan()
        swept = RunFirings(Stream(stream, plan, METRICS), lambda: stream)
        for number, variant in chosen.items():
            columns = [event for each in swept.firings(variant) for event in each.events.tolist()]
            policy = variant.policy()
            start = time.process_time()
            replayed = replay_events(policy, events, plan)
            self.engine_s += time.process_time() - start
            is_same = columns == [judged.event_index for judged in replayed.decisions]
            stop_step = NO_STEP if replayed.stop is None else replayed.stop.outcome.step
            is_same &= (outcomes.stop_step[number], outcomes.decisions[number]) == (stop_step, len(replayed.reached))
            self.disagreed += not is_same


def stops_in_numpy(recorded: EventStream) -> npt.NDArray[np.int64]:
    """Return the step at which each variant stops a run; ``NO_STEP`` where it does not. Shape (variants,)."""
    stream = Stream(recorded, Plan(), METRICS)
    rows = stream.rows("step_end")
    losses, norms, steps = stream.whole("loss")[rows], stream.whole("grad_norm")[rows], stream.steps[rows]
    high = {floor: norms > floor for floor in AXES["floor"]}
    stops = []
    for window, spike in itertools.product(map(int, AXES["window"]), AXES["spike"]):
        sums = np.zeros(len(losses))
        with np.errstate(invalid="ignore"):  # The sum of two infinities.
            for age in range(window):
                sums[age:] += losses[: len(losses) - age]
        spikes = losses > spike * (sums / window)
        spikes[:window] = False
        in_a_row = {}
        for floor in AXES["floor"]:
            edges = np.flatnonzero(np.diff(spikes & high[floor], prepend=False, append=False))
            in_a_row[floor] = edges[::2], edges[1::2] - edges[::2]
        for tolerated, floor in itertools.product(map(int, AXES["tolerated"]), AXES["floor"]):
            begins, lengths = in_a_row[floor]
            long = np.flatnonzero(lengths > tolerated)
            stops.append(int(steps[begins[long[0]] + tolerated]) if len(long) else NO_STEP)
    return np.array(stops)


def naive_s(events: Sequence[Event], steps: int = 1_000) -> float:
    """Return simpleeval's seconds for a rule at a step, the rule parsed once."""
    rule = "len(w) > 19 and loss > spike * sum(w) / len(w) and grad_norm > floor"
    tree = simpleeval.SimpleEval.parse(rule)
    window: deque[float] = deque(maxlen=20)
    own = [event._replace(metrics=dict(event.metrics)) for event in events if event.kind == "step_end"][:steps]
    start = time.process_time()
    for event in own:
        window.append(event.metrics["loss"])
        names = {"w": window, "spike": 2.0, "floor": 1.0, **event.metrics}
        simpleeval.EvalWithCompoundTypes(functions={"len": len, "sum": sum}, names=names).eval(rule, tree)
    return (time.process_time() - start) / len(own)


def main() -> None:
    """Write the runs, time the sweep, check it, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, help="100 by default, 1,000 with --wide")
    parser.add_argument("--steps", type=int, help="10,000 by default, 200 with --wide")
    parser.add_argument("--wide", action="store_true", help="100,000 variants; print time and memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checked", type=int, default=1_000, help="pairs of a variant and a run, drawn at random")
    parser.add_argument(
        "--store", type=Path, help="where the runs are, or are to be; a folder for the time being if not"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder) / "runs"
        if not store.exists():
            sizes = (1_000, 200) if given.wide else (100, 10_000)
            write_runs(store, given.runs or sizes[0], given.steps or sizes[1])
        entries, _ = open_store(store).entries()
        if given.wide:
            measure_wide([Run(entry.snapshot.folder) for entry in entries])
            return
        measure([Run(entry.snapshot.folder) for entry in entries], given.rounds, given.checked)


def measure_wide(runs: Sequence[Run]) -> None:
    """Time a sweep of 100,000 variants that folds totals as runs come, and print its memory."""
    policy, peaks = parse_policy(POLICY), [peak_mib()]
    tenth = max(1, len(runs) // 10)

    def progressed(progress: Progress) -> None:
        if progress.done == tenth:
            peaks.append(peak_mib())

    start = time.perf_counter()
    found = sweep(policy, WIDE_AXES, runs, objective=OBJECTIVE, on_progress=progressed, keep_outcomes=False)
    line = {
        "case": "wide",
        "variants": len(found.variants),
        "runs": len(found.runs),
        "front": len(found.front),
        "wall_s": round(time.perf_counter() - start, 1),
        "peak_mib": [*peaks, peak_mib()],
        "load": os.getloadavg()[0],
    }
    print(json.dumps(line))


def peak_mib() -> int:
    """Return the peak of this process's resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measure(runs: Sequence[Run], rounds: int, checked: int) -> None:
    """Time and check the sweep over those runs."""
    policy = parse_policy(POLICY)
    variants = variants_of(policy, AXES)
    wanted = frozenset[str]().union(*(batch.metrics for batch in batches_of(variants))) | {OBJECTIVE.metric}
    streams = [read_metrics(run.snapshot(), wanted) for run in runs]
    pairs = len(variants) * len(runs)

    def sweep_all() -> list[Outcomes]:
        batches = batches_of(variants_of(policy, AXES))
        return [sweep_stream(batches, stream, RunBackground(), OBJECTIVE).outcomes.of_each() for stream in streams]

    swept = sweep_all()
    fired = sum(int((outcomes.decisions > 0).sum()) for outcomes in swept)
    sizes = {"variants": len(variants), "runs": len(runs), "events": sum(map(len, streams)), "pairs_that_fire": fired}
    print(json.dumps({"case": "sizes", **sizes, "cores": os.cpu_count()}))
    once_read = best_s(rounds, sweep_all)
    print(json.dumps({"case": "once read, one core", **once_read, "load": os.getloadavg()}))
    in_numpy = best_s(rounds, lambda: [stops_in_numpy(stream) for stream in streams])
    differ = sum(
        int((stops_in_numpy(stream) != outcomes.stop_step).sum())
        for stream, outcomes in zip(streams, swept, strict=True)
    )
    of_numpy = round(once_read["cpu_s"] / in_numpy["cpu_s"], 2)
    print(json.dumps({"case": "stops in numpy", **in_numpy, "sweep_of_numpy": of_numpy, "pairs_that_differ": differ}))
    stored = best_s(rounds, lambda: sweep(policy, AXES, runs, objective=OBJECTIVE, processes=os.cpu_count() or 1))
    print(json.dumps({"case": "from the store, processes where they are worth it", **stored}), flush=True)

    chosen = np.random.default_rng(0).choice(pairs, min(checked, pairs), replace=False)
    check, naive = Check(), 0.0
    for place in np.unique(chosen % len(runs)).tolist():
        events = list(runs[place].events())
        naive = naive or naive_s(events)
        numbers = (chosen[chosen % len(runs) == place] // len(runs)).tolist()
        check.run(streams[place], events, swept[place], {number: variants[number] for number in numbers})
    every_s = check.engine_s / len(chosen) * pairs
    line = {
        "case": "event engine",
        "every_pair_s": round(every_s),
        "times_the_sweep": round(every_s / once_read["cpu_s"]),
    }
    print(json.dumps(line))
    naive_every_s = naive * sum(map(len, streams)) * len(variants)
    line = {"case": "simpleeval, parsed", "every_pair_s": round(naive_every_s)}
    print(json.dumps({**line, "times_the_sweep": round(naive_every_s / once_read["cpu_s"])}))
    print(json.dumps({"case": "agreement", "pairs_checked": len(chosen), "disagreed": check.disagreed}))
    sys.exit(check.disagreed > 0 or differ > 0)


if __name__ == "__main__":
    main()

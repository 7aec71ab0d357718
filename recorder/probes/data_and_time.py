"""Counts tokens, targets and samples, and times updates: the metrics of the groups ``data`` and ``time``.

Forward passes of the watched module and the ends of updates go in. ``StepTimes`` splits the time of updates into
waiting for data and computing, without the time of spans and probes.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .batch_counts import BatchArguments, Counts, Finder
from .hooks import Hook
from .module_tree import is_lazy
from .probe_values import ProbeGroup, Readings

logger = logging.getLogger("steptape")

_Item = TypeVar("_Item")

#: Floating-point operations per token and parameter: two forward, four backward.
_OPERATIONS: Final = 6
_NO_FORWARD: Final = (
    "no forward pass of the model was seen: it is compiled in a larger region, called in parts, or in torch.func"
)
_NO_IDS: Final = "the model's arguments hold no token ids"
_NO_LABELS: Final = "the model's arguments hold no labels"
_NO_TOKEN_TARGETS: Final = "the model's arguments hold no label for each token"
_NO_WAIT: Final = "no forward pass ends the wait; iterate over watch.batches(loader)"
_NO_PEAK: Final = "rec.watch got no peak_tflops"
_OF_IDS: Final = ("Tokens/seen", "Data/tokens_per_update", "Throughput/tokens_per_second")
_OF_LABELS: Final = (
    "Tokens/effective_seen",
    "Data/effective_tokens_per_update",
    "Data/ignore_frac",
    "Throughput/effective_tokens_per_second",
)
_OF_TOKEN_TARGETS: Final = ("Perf/achieved_tflops", "Perf/mfu")
_OF_WAIT: Final = (
    "Time/data_wait_seconds",
    "Time/data_wait_frac",
    "Time/compute_seconds_est",
    "Time/compute_frac_est",
)
_OF_VALIDATION: Final = "Data/ignore_frac_val"


class DataAndTime(ProbeGroup):
    """Counts and times one model's updates.

    All forward passes of an update add up. A pass in evaluation mode or without gradients counts as evaluation. The
    recomputation of a checkpointed model does not count.

    ``batches`` measures the wait for data. Without it, the wait is the time from the end of an update to the first
    forward pass of the next: an estimate that includes whatever else the loop does there.

    Args:
        model: The watched module. It is referenced weakly.
        spans_ns: Returns the time in spans so far, in nanoseconds. It includes a span that is open.
        probes_ns: Returns the time in probes so far, in nanoseconds.
        peak_tflops: The peak of the device in 10^12 operations per second; None if unknown.
        find_ids, find_labels: Find token ids and labels in the model's arguments by name. By default see
            ``BatchArguments``.
    """

    _pauses: ClassVar[int] = 0

    def __init__(
        self,
        model: nn.Module,
        spans_ns: Callable[[], int],
        probes_ns: Callable[[], int],
        *,
        peak_tflops: float | None = None,
        find_ids: Finder | None = None,
        find_labels: Finder | None = None,
    ) -> None:
        self._model = weakref.ref(model)
        self._spans_ns, self._peak_tflops = spans_ns, peak_tflops
        self._arguments = BatchArguments(model, find_ids, find_labels)
        self._times = StepTimes(spans_ns, probes_ns)
        self._counts = self._ended = self._begun = self._read = self._validation = Counts()
        self._parameters, self._failure = 0, ""
        self._lacks_validation_labels = self._is_closed = False
        self._handle = model.register_forward_pre_hook(Hook(self._see_forward), with_kwargs=True)

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def batches(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """Iterate over a loader, and measure how long each batch takes to come."""
        began_ns, spans_ns = time.monotonic_ns(), self._spans_ns()
        iterator = iter(loader)
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                if not self._is_closed:
                    self._times.waited(began_ns, time.monotonic_ns(), spans_ns)
            yield item
            began_ns, spans_ns = time.monotonic_ns(), self._spans_ns()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count no forward pass meanwhile, also in other watches."""
        DataAndTime._pauses += 1
        try:
            yield
        finally:
            DataAndTime._pauses -= 1

    def _see_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._pauses or self._failure or _is_in_backward():
            return
        try:
            self._count(module, args, kwargs)
        except Exception as error:  # Arguments may be of any kind, and the model must run with them.
            self._failure = f"the model's arguments could not be counted: {type(error).__name__}: {error}"
            logger.warning("probes: %s", self._failure)

    def _count(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if module.training:
            self._times.begin_forward(time.monotonic_ns())
        else:
            self._times.evaluate(time.monotonic_ns())
        content = self._arguments.content(args, kwargs)
        if module.training and torch.is_grad_enabled():
            self._counts = self._counts.add(content)
        else:
            self._validation = self._validation.add(content)

    # --- the watch's side ---------------------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """Return the times that no update includes, for an ``end_update`` that is called later."""
        return self._times.totals()

    def end_update(self, now_ns: int, totals: Totals | None = None) -> None:
        """End an update. Forward passes from now on belong to the next.

        Args:
            now_ns: When it ended, by ``time.monotonic_ns``.
            totals: What ``totals`` returned at that time. None: those of now.
        """
        self._times.end_update(now_ns, totals)
        self._begun, self._ended = self._ended, self._counts

    def begin_forward(self) -> None:
        """Note that a forward pass in training begins. Its arguments are counted when it is seen."""
        if not (self._pauses or self._failure or _is_in_backward()):
            self._times.begin_forward(time.monotonic_ns())

    def read(self, readings: Readings) -> None:
        """Add the numbers of the update that has ended, and means since the emission before."""
        total, update, window = self._ended, self._ended.since(self._begun), self._ended.since(self._read)
        self._read, times = self._ended, self._times.pop_sums()
        self._read_data(readings, total, update)
        self._read_time(readings, times)
        if times.elapsed_ns:
            self._read_throughput(readings, window, times)
        self._explain(readings, total, times)

    def read_evaluation(self) -> dict[str, Tensor | float]:
        """Return the metrics of the forward passes in evaluation since the call before."""
        seen, self._validation = self._validation, Counts()
        share = seen.ignored_share
        self._lacks_validation_labels = seen.forwards > 0 and share is None
        return {} if share is None else {_OF_VALIDATION: share}

    def close(self) -> None:
        """Stop to count. Iterators of ``batches`` continue."""
        self._is_closed = True
        self._handle.remove()

    # --- metrics ------------------------------------------------------------------------------------------------------

    def _read_data(self, readings: Readings, total: Counts, update: Counts) -> None:
        if update.token_forwards:
            readings.number("Tokens/seen", total.tokens)
            readings.number("Data/tokens_per_update", update.tokens)
        if update.labelled_forwards:
            readings.scalar("Tokens/effective_seen", total.effective)
            readings.scalar("Data/effective_tokens_per_update", update.effective)
            if (share := update.ignored_share) is not None:
                readings.scalar("Data/ignore_frac", share)

    def _read_time(self, readings: Readings, times: UpdateTimes) -> None:
        if not times.updates:
            return
        step_s = times.elapsed_ns / times.updates / 1e9
        readings.number("Time/step_seconds", step_s)
        if times.wait_ns is not None:
            wait_s = times.wait_ns / times.updates / 1e9
            readings.number("Time/data_wait_seconds", wait_s)
            readings.number("Time/compute_seconds_est", step_s - wait_s)
            if times.elapsed_ns:
                wait_frac = times.wait_ns / times.elapsed_ns
                readings.number("Time/data_wait_frac", wait_frac)
                readings.number("Time/compute_frac_est", 1 - wait_frac)

    def _read_throughput(self, readings: Readings, window: Counts, times: UpdateTimes) -> None:
        elapsed_s = times.elapsed_ns / 1e9
        readings.number("Throughput/steps_per_second", times.updates / elapsed_s)
        if window.samples:
            readings.number("Throughput/samples_per_second", window.samples / elapsed_s)
        if window.token_forwards:
            readings.number("Throughput/tokens_per_second", window.tokens / elapsed_s)
        if window.labelled_forwards:
            per_s = window.effective / elapsed_s
            readings.scalar("Throughput/effective_tokens_per_second", per_s)
            if window.aligned_forwards == window.labelled_forwards:
                tflops = per_s * (_OPERATIONS * self._parameter_count() / 1e12)
                readings.scalar("Perf/achieved_tflops", tflops)
                if self._peak_tflops is not None:
                    readings.scalar("Perf/mfu", tflops / self._peak_tflops)

    def _explain(self, readings: Readings, total: Counts, times: UpdateTimes) -> None:
        """Say why metrics have no value."""
        unseen = self._failure or ("" if total.forwards else _NO_FORWARD)
        reasons: dict[str, str] = {}
        if unseen or not total.token_forwards:
            reasons |= dict.fromkeys(_OF_IDS, unseen or _NO_IDS)
        if unseen or not total.labelled_forwards:
            reasons |= dict.fromkeys((*_OF_LABELS, *_OF_TOKEN_TARGETS), unseen or _NO_LABELS)
        elif total.aligned_forwards < total.labelled_forwards:
            reasons |= dict.fromkeys(_OF_TOKEN_TARGETS, _NO_TOKEN_TARGETS)
        elif self._peak_tflops is None:
            reasons["Perf/mfu"] = _NO_PEAK
        if unseen or not total.samples:
            reasons["Throughput/samples_per_second"] = unseen or "the model's arguments hold no tensor"
        if times.wait_ns is None:
            reasons |= dict.fromkeys(_OF_WAIT, _NO_WAIT)
        if self._lacks_validation_labels:
            reasons[_OF_VALIDATION] = "the model's arguments in the evaluation hold no labels"
        readings.absent |= {
            name: why for name, why in reasons.items() if name not in {*readings.numbers, *readings.scalars}
        }

    def _parameter_count(self) -> int:
        """Return the number of elements of all parameters, shared ones once, without lazy ones that are still empty."""
        model = self._model()
        if not self._parameters and model is not None:
            self._parameters = sum(each.numel() for each in model.parameters() if not is_lazy(each))
        return self._parameters


class StepTimes:
    """The times of updates, each from the end of the one before to its own end.

    The first update begins with its first forward pass: the start of the loader does not count. So does the first
    update after forward passes in evaluation mode outside a span: nothing shows how long the evaluation took.

    Args:
        spans_ns: Returns the time in spans so far, in nanoseconds. It includes a span that is open.
        probes_ns: Returns the time in probes so far, in nanoseconds.
    """

    def __init__(self, spans_ns: Callable[[], int], probes_ns: Callable[[], int]) -> None:
        self._spans_ns, self._probes_ns = spans_ns, probes_ns
        self._waited_ns = 0
        self._is_measured = False
        self._ended: Moment | None = None
        self._forward: Moment | None = None
        self._evaluation: Moment | None = None
        self._sums = UpdateTimes()

    def totals(self) -> Totals:
        """Return the totals of this moment."""
        return Totals(self._spans_ns(), self._probes_ns(), self._waited_ns)

    def waited(self, began_ns: int, ended_ns: int, spans_ns: int) -> None:
        """Count a call of the loader's ``next``.

        Args:
            began_ns, ended_ns: When it began and ended.
            spans_ns: The time in spans when it began.
        """
        self._is_measured = True
        self._waited_ns += max(0, ended_ns - began_ns - (self._spans_ns() - spans_ns))

    def begin_forward(self, now_ns: int) -> None:
        """Note a forward pass in training. The first one of an update ends its wait."""
        if self._forward is not None:
            return
        self._forward = Moment(now_ns, self.totals())
        if self._has_unknown_gap(self._forward):
            self._ended = None

    def evaluate(self, now_ns: int) -> None:
        """Note a forward pass in evaluation mode."""
        if self._evaluation is None:
            self._evaluation = Moment(now_ns, self.totals())

    def end_update(self, now_ns: int, totals: Totals | None = None) -> None:
        """Add up an update.

        Args:
            now_ns: When it ended.
            totals: The totals of that moment; None for those of now.
        """
        end = Moment(now_ns, self.totals() if totals is None else totals)
        begin = self._forward if self._ended is None else self._ended
        if begin is not None:
            elapsed = _between(begin, end)
            wait = self._wait_ns(begin, end)
            known = None if wait is None or self._sums.wait_ns is None else self._sums.wait_ns + min(wait, elapsed)
            self._sums = UpdateTimes(self._sums.updates + 1, self._sums.elapsed_ns + elapsed, known)
        self._ended, self._forward = end, None
        if self._evaluation is not None and self._evaluation.now_ns < now_ns:
            self._evaluation = None

    def pop_sums(self) -> UpdateTimes:
        """Return the sums since the call before."""
        sums, self._sums = self._sums, UpdateTimes()
        return sums

    def _wait_ns(self, begin: Moment, end: Moment) -> int | None:
        if self._is_measured:
            return end.totals.waited_ns - begin.totals.waited_ns
        return None if self._forward is None else _between(begin, self._forward)

    def _has_unknown_gap(self, forward: Moment) -> bool:
        """Whether an evaluation before this forward pass is not inside a span. A span would have grown meanwhile."""
        evaluation, self._evaluation = self._evaluation, None
        return evaluation is not None and evaluation.totals.spans_ns == forward.totals.spans_ns


class UpdateTimes(NamedTuple):
    """Sums over finished updates. Of an update before the first forward pass nothing is known, and it does not count.

    Attributes:
        updates: Number of updates.
        elapsed_ns: Waiting and computing, without spans and probes.
        wait_ns: Waiting for batches, at most ``elapsed_ns``; None if the wait of an update is unknown.
    """

    updates: int = 0
    elapsed_ns: int = 0
    wait_ns: int | None = 0


class Totals(NamedTuple):
    """Times since the start of the watch, at one moment.

    Attributes:
        spans_ns: Spent in spans.
        probes_ns: Spent in probes.
        waited_ns: Measured in the loader's ``next``.
    """

    spans_ns: int
    probes_ns: int
    waited_ns: int

    @property
    def excluded_ns(self) -> int:
        """The time that belongs to no update."""
        return self.spans_ns + self.probes_ns


class Moment(NamedTuple):
    """A moment, with the totals at that moment."""

    now_ns: int
    totals: Totals


def _between(begin: Moment, end: Moment) -> int:
    return max(0, end.now_ns - begin.now_ns - (end.totals.excluded_ns - begin.totals.excluded_ns))


def _is_in_backward() -> bool:
    """Whether a backward pass runs this forward pass again, for a checkpoint."""
    # torch's own checkpoints use this function, too. It has no public name.
    return torch._C._current_graph_task_id() != -1

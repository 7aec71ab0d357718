"""DataBatchInspector identifies bad batches and their spiking samples, with the same result live and in replay."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import Recorder, Samples, backtest, load_policy, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.metrics import DataBatchInspector
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.errors import DamagedLog
from steptape.store.events import INTEGER_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.journal.format import compact_json
from steptape.store.plan import Plan
from steptape.store.run_info import Attempt

nan, inf = math.nan, math.inf


def policy_text(arguments: str = "", rule: str = "batch.is_bad") -> str:
    """Return a policy with the metric, and a controller that logs its value."""
    return f"""\
controller_metrics:
  - name: batch
    class: DataBatchInspector
    arguments: {{{arguments}}}
operations:
  - {{name: note, class: LogControl, arguments: {{log_format: "{{batch[sample_ids]}}", log_level: INFO}}}}
controllers:
  - {{name: it, triggers: [on_step_end], rule: {rule}, operations: [note.should_log]}}
"""


def packed(losses: Sequence[float], ids: Sequence[str] | Sequence[int] = ()) -> SampleLosses:
    """Pack sample losses as a recorder does."""
    block = struct.pack(f"<{len(losses)}f", *losses)
    if not ids:
        return SampleLosses(block)
    if isinstance(ids[0], int):
        return SampleLosses(block, struct.pack(f"<{len(ids)}q", *ids), INTEGER_IDS)
    return SampleLosses(block, compact_json(ids), TEXT_IDS)


def batch(
    loss: float, losses: Sequence[float] = (1.0,), ids: Sequence[str] | Sequence[int] = (), step: int = 1
) -> Event:
    """Return a ``step_end`` event with its sample losses."""
    return Event("step_end", step=step, seq=step - 1, metrics={"loss": loss}, samples=packed(losses, ids))


def inspected(arguments: str, *events: Event) -> list[Any]:
    """Return the metric's value after each event, with those arguments in the policy file."""
    metric = DataBatchInspector(parse_policy(policy_text(arguments)).metrics[0].arguments, Plan())
    return [metric.compute(event) for event in events]


def is_bad(arguments: str, *events: Event) -> list[bool | None]:
    """Return whether each batch is bad; None if unknown."""
    return [None if value is None else value["is_bad"] for value in inspected(arguments, *events)]


# --- one batch ------------------------------------------------------------------------------------------------------


def test_of_a_bad_batch_the_spiking_samples_are_told() -> None:
    """They are the ones above three times the median, the highest first, with their share of the summed loss."""
    event = batch(5.0, [1.0, 9.0, 1.0, 2.0, 12.0], [10, 11, 12, 13, 14])

    assert inspected("threshold: 4", event) == [
        {
            "is_bad": True,
            "loss": 5.0,
            "threshold": 4.0,
            "samples": 5,
            "spiking": 2,
            "share": 21 / 25,
            "sample_ids": ["14", "11"],
            "losses": [12.0, 9.0],
        }
    ]


def test_of_any_other_batch_no_sample_is_looked_at() -> None:
    """A loss that just reaches the threshold is not bad."""
    fine = {"is_bad": False, "threshold": 4.0, "samples": 2, "spiking": 0, "share": 0.0, "sample_ids": [], "losses": []}

    assert inspected("threshold: 4", batch(1.0, [1.0, 99.0]), batch(4.0, [1.0, 99.0])) == [
        fine | {"loss": 1.0},
        fine | {"loss": 4.0},
    ]


def test_a_batch_may_be_bad_as_a_whole() -> None:
    """Then no sample spikes."""
    (value,) = inspected("threshold: 4", batch(5.0, [5.0, 5.5, 4.5, 5.0]))

    assert (value["is_bad"], value["spiking"], value["share"], value["sample_ids"]) == (True, 0, 0.0, [])


@pytest.mark.parametrize(
    ("losses", "spiking"),
    [
        ([1.0, 1.0, 1.0, 3.0], []),
        ([1.0, 1.0, 1.0, 3.5], [3]),
        ([1.0, 2.0, 3.0, 7.4], []),
        ([1.0, 2.0, 3.0, 7.6], [3]),
        ([2.0], []),
        ([0.0, 0.0, 1e-30], [2]),
    ],
)
def test_a_sample_spikes_above_the_multiple_of_the_median(losses: list[float], spiking: list[int]) -> None:
    """For an even number the median is the mean of the middle two; a sample without an id is named by its position."""
    (value,) = inspected("threshold: 0", batch(5.0, losses))

    assert value["sample_ids"] == [f"#{place}" for place in spiking]


def test_the_multiple_and_the_number_of_named_samples_can_be_said() -> None:
    """All spiking samples are counted; the highest are named, in recorded order among equals."""
    event = batch(5.0, [1.0, 1.0, 1.0, 1.0, 1.6, 1.8, 1.6], list("abcdefg"))
    (value,) = inspected("threshold: 0, sample_spike: 1.5, top: 2", event)

    assert (value["spiking"], value["sample_ids"]) == (3, ["f", "e"])


def test_losses_are_those_that_the_log_holds() -> None:
    """They are float32, whatever the loop had; sums run over them from left to right."""
    losses = [0.1] * 9 + [7.7]
    rounded = struct.unpack("<10f", struct.pack("<10f", *losses))
    whole = 0.0
    for loss in rounded:
        whole += loss
    (value,) = inspected("threshold: 0", batch(5.0, losses))

    assert (value["losses"], value["share"]) == ([rounded[9]], rounded[9] / whole)


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_a_sample_loss_that_is_not_finite_spikes_and_carries_everything(odd: float) -> None:
    """It is named first and does not enter the median."""
    (value,) = inspected("threshold: 0", batch(5.0, [1.0, 1.0, 9.0, odd], list("abcd")))

    assert (value["spiking"], value["share"], value["sample_ids"]) == (2, 1.0, ["d", "c"])


def test_a_batch_of_losses_that_are_not_finite_spikes_in_every_sample() -> None:
    """There is no median to compare with."""
    (value,) = inspected("threshold: 0", batch(nan, [nan, inf, nan]))

    assert (value["spiking"], value["share"], value["sample_ids"]) == (3, 1.0, ["#0", "#1", "#2"])


@pytest.mark.parametrize("losses", [[0.0, 0.0], [-2.0, -1.0, -3.0], [0.0, 1.0, -5.0]])
def test_a_sum_that_is_not_above_zero_has_no_share(losses: list[float]) -> None:
    """Nothing is divided by zero, and no share is negative."""
    (value,) = inspected("threshold: 0", batch(5.0, losses))

    assert value["share"] == 0.0


def test_ids_that_are_not_as_many_as_samples_are_a_damaged_log() -> None:
    """Only a foreign writer could cause that."""
    with pytest.raises(DamagedLog, match=r"sample ids that cannot be read \(1 ids for 4 samples\)"):
        inspected("threshold: 0", batch(5.0, [1.0, 1.0, 1.0, 9.0], ["a"]))


def test_the_worst_token_of_the_worst_sample_is_in_the_value(tmp_path: Path) -> None:
    """It is the same live, from a journal and from Parquet; without token losses such a rule is undefined."""
    policy = policy_text("threshold: 4", rule="batch.token_loss > 20 and batch.token == 2")
    rows = [[1.0, 1.0], [2.0, 3.0, 22.0], [0.5], [2.0, 3.0, 5.0], [1.0, nan, 4.0]]
    recorded = []
    for is_sealed in (False, True):
        with Recorder(tmp_path, rules=parse_policy(policy), samples=Samples(tokens_over=2.0), quiet=True) as rec:
            rec.step(loss=1.0, samples=[1.0], token_losses=[[90.0]])
            rec.step(loss=5.0, samples=[1.0, 9.0, 0.5, 10 / 3, 2.5], token_losses=rows, sample_ids=[*"abcde"])
            rec.step(loss=5.0, samples=[1.0, 9.0, 1.0])
            rec.step(loss=5.0, samples=[1.0, 1.0, 9.0], token_losses=[[1.0], [1.0], [nan, 40.0]])
        rec.close(seal=is_sealed)
        run = open_run(rec.folder)
        recorded.append([decision["step"] for decision in run.decisions().to_pylist()])
        assert verify(run).identical

    assert recorded == [[2], [2]]
    assert inspected("threshold: 4", list(run.events(samples=True))[2])[0]["token_loss"] == 22.0


# --- the threshold --------------------------------------------------------------------------------------------------


def test_without_a_threshold_a_batch_is_held_against_those_before_it() -> None:
    """The limit is twice the mean of up to three earlier losses, including those of bad batches and bare steps."""
    losses = [1.0, 1.0, 1.0, 4.0, 4.1, 3.0]
    bare = Event("step_end", metrics={"loss": 4.0})

    assert is_bad("window_size: 3", *map(batch, losses)) == [None, False, False, True, True, False]
    assert is_bad("window_size: 3", batch(1.0), bare, batch(5.0), batch(5.1)) == [None, None, False, False]
    assert is_bad("spike: 4, window_size: 3", *map(batch, losses)) == [None, False, False, False, False, False]
    assert inspected("window_size: 2", *map(batch, losses))[3]["threshold"] == 2.0


def test_a_threshold_may_be_written_as_null() -> None:
    """It equals an omitted threshold, in the policy's digest too."""
    assert is_bad("threshold: null", batch(1.0), batch(9.0)) == [None, True]
    assert parse_policy(policy_text("threshold: ~")).digest == parse_policy(policy_text()).digest
    assert parse_policy(policy_text("threshold: 0")).digest != parse_policy(policy_text()).digest


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_a_batch_loss_that_is_not_finite_is_bad_and_leaves_the_mean_alone(odd: float) -> None:
    """This holds even at the first step; later batches are judged as if it were absent."""
    first, _, second, third = inspected("window_size: 3", batch(odd), batch(1.0), batch(odd), batch(3.0))

    assert (first["is_bad"], first["threshold"]) == (True, None)
    assert (second["is_bad"], third["is_bad"], third["threshold"]) == (True, True, 2.0)
    assert is_bad("threshold: 4", batch(odd)) == [True]


def test_a_negative_loss_counts_by_its_magnitude() -> None:
    """Twice -2 is 0, as far above as 2 is from 4; a falling batch is not bad, and a falling sample does not spike."""
    falling = [batch(-1.0), batch(-3.0), batch(-5.0)]
    (value,) = inspected("threshold: -9, sample_spike: 2", batch(-2.0, [-2.0, -2.0, -2.0, -3.0, -0.5, 0.5]))

    assert is_bad("window_size: 1", *falling) == [None, False, False]
    assert is_bad("window_size: 1", batch(-2.0), batch(-0.1), batch(0.5)) == [None, False, True]
    assert value["sample_ids"] == ["#5"]


def test_the_batch_loss_may_go_by_another_name() -> None:
    """Any metric of ``step_end`` will do."""
    event = Event("step_end", metrics={"loss": 1.0, "train/nll": 9.0}, samples=packed([1.0]))

    assert is_bad("series: train/nll, threshold: 5", event) == [True]


@pytest.mark.parametrize(
    "event",
    [
        Event("step_end", metrics={"loss": 9.0}),
        batch(9.0, []),
        Event("step_end", metrics={"x": 9.0}, samples=packed([1.0])),
    ],
    ids=["no samples", "an empty batch", "no loss"],
)
def test_a_step_that_lacks_something_makes_the_metric_unavailable(event: Event) -> None:
    """Its previous value is dropped, and a rule is undefined then."""
    engine = Engine(parse_policy(policy_text("threshold: 4", rule="batch != None")))
    fired = [bool(engine.observe(each)) for each in (batch(9.0), event, batch(1.0))]

    assert fired == [True, False, True]


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("threshold: high", "4:28: {}, threshold: must be a finite number; got 'high'. {}"),
        ("threshold: .inf", "4:28: {}, threshold: must be a finite number; got .inf. {}"),
        ("threshold: true", "4:28: {}, threshold: must be a finite number; got true. {}"),
        ("spike: 0", "4:24: {}, spike: must be above 0; got 0"),
        ("spike: null", "4:24: {}, spike: must be a finite number; got null. {}"),
        ("sample_spike: -1.5", "4:31: {}, sample_spike: must be above 0; got -1.5"),
        ("window_size: 0", "4:30: {}, window_size: must be from 1 to 100,000; got 0"),
        ("window_size: 2.5", "4:30: {}, window_size: must be a whole number; got 2.5. {}"),
        ("top: 1001", "4:22: {}, top: must be from 1 to 1,000; got 1001"),
        ("series: 3", "4:25: {}, series: must be text; got 3. Put it in quotes."),
        ("treshold: 3", "4:17: {}: unknown key; got 'treshold'. Did you mean 'threshold'?"),
    ],
)
def test_a_wrong_argument_is_refused_at_its_place(arguments: str, expected: str) -> None:
    """The error is raised when the file is loaded."""
    with pytest.raises(PolicyError) as refused:
        parse_policy(policy_text(arguments), source="p.yaml")

    by_param = "A param with such a value can also be named here."
    assert str(refused.value) == "p.yaml:" + expected.format("controller metric 'batch'", by_param)


def test_numbers_may_be_params() -> None:
    """Params may be overridden."""
    text = "params: {limit: 3, wide: 1.5}\n" + policy_text("threshold: limit, sample_spike: wide")
    arguments = parse_policy(text, params={"limit": 7}).metrics[0].arguments

    assert (arguments["threshold"], arguments["sample_spike"]) == (7.0, 1.5)


def test_a_policy_knows_whether_it_reads_samples() -> None:
    """Samples are read and passed only for such a policy."""
    assert parse_policy(policy_text()).reads_samples
    assert not load_policy(shipped_policies()["loss_spike"]).reads_samples


# --- live, in replay, and backtested --------------------------------------------------------------------------------


def record(store: Path, policy: str, *, seed: float = 0.7) -> Path:
    """Record a run under a policy, with a bad batch every seventh step, a NaN, and steps without samples."""
    with Recorder(store, rules=parse_policy(policy)) as rec:
        for step in range(1, 60):
            losses = [seed + 1 / (step + place) for place in range(8)]
            if step % 7 == 0:
                losses[step % 8] = 40.1
            if step == 40:
                losses[3] = nan
            ids = [f"doc-{step}-{place}" for place in range(8)] if step % 2 else range(8 * step, 8 * step + 8)
            rec.step(loss=sum(losses) / 8, samples=None if step % 10 == 9 else losses, sample_ids=list(ids))
    rec.close(seal=True)
    return rec.folder


def outcomes_of(policy: str, events: Sequence[Event]) -> list[tuple[int, str, list[str]]]:
    """Return step, values and messages of each decision of an engine fed directly."""
    engine = Engine(parse_policy(policy))
    decided = [outcome for event in events for outcome in engine.observe(event) if isinstance(outcome, Decision)]
    return [(each.step, repr(each.values), [m.text for m in each.messages]) for each in decided]


RULE = "batch.is_bad and batch.share > 0.3"


def test_what_was_decided_live_on_sample_losses_is_what_replay_decides(tmp_path: Path) -> None:
    """Values and names agree, from Parquet and from events in memory."""
    policy = policy_text("spike: 1.5, window_size: 5", rule=RULE)
    run = open_run(record(tmp_path, policy))
    verdict = verify(run)
    replayed = replay(parse_policy(policy), run)
    by_hand = outcomes_of(policy, list(run.events(samples=True)))

    assert verdict.identical
    assert verdict.outcomes == len(replayed.decisions) == len(by_hand) > 5
    assert {str(judged.validity) for judged in replayed.decisions} == {"observed"}
    assert [(step, messages) for step, _, messages in by_hand][:2] == [(7, ["['doc-7-7']"]), (14, ["['118']"])]


def test_a_changed_sample_loss_is_found(tmp_path: Path) -> None:
    """Verify reads sample losses if the policy does."""
    folder = record(tmp_path, policy_text("spike: 1.5, window_size: 5", rule=RULE))
    (path,) = folder.glob("samples-*.parquet")
    table = pq.read_table(path)
    calm = pa.array([min(loss, 2.0) for loss in table["loss"].to_pylist()], pa.float32())
    pq.write_table(table.set_column(table.schema.get_field_index("loss"), "loss", calm), path)

    assert not verify(open_run(folder)).identical


def test_a_resumed_attempt_knows_the_batches_before_it(tmp_path: Path) -> None:
    """The window of batch losses is refolded along the lineage, with sample losses read on request."""
    run = open_run(record(tmp_path, policy_text("spike: 1.5, window_size: 5", rule=RULE)))
    ((_, held),) = run.ancestry(Attempt(1, "running", 1, parent=0, from_step=20), samples=True)

    assert [event.step for event in held if event.samples is not None] == [n for n in range(1, 21) if n % 10 != 9]


def test_a_backtest_reads_sample_losses_and_says_where_there_are_none(tmp_path: Path) -> None:
    """Silence would look like approval."""
    policy = parse_policy(policy_text("spike: 1.5, window_size: 5", rule=RULE))
    with Recorder(tmp_path / "bare") as rec:
        rec.step(loss=1.0)
    runs = [open_run(record(tmp_path / "runs", policy_text("threshold: 1000"))), open_run(rec.folder)]
    sampled, bare = backtest(policy, runs).results

    lacking = "it recorded no sample losses: rules that read them were undefined throughout"
    assert len(sampled.decisions) > 5
    assert [lacking in result.notes for result in (sampled, bare)] == [False, True]


def test_the_shipped_policy_names_bad_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It distinguishes them from a batch that is bad as a whole."""
    with (
        caplog.at_level(logging.WARNING, "steptape.rules"),
        Recorder(tmp_path, rules=load_policy(shipped_policies()["bad_batches"])) as rec,
    ):
        for loss, losses in (
            (1.0, [1.0] * 4),
            (2.5, [0.5, 0.5, 8.5, 0.5]),
            (9.0, [9.0] * 4),
            (nan, [1.0, nan, 1.0, 1.0]),
        ):
            rec.step(loss=loss, samples=losses, sample_ids=["a", "b", "c", "d"])

    assert [entry.getMessage() for entry in caplog.records] == [
        "bad_samples at step 2: 1 of 4 samples carry 85% of a batch loss of 2.5: ['c']",
        "bad_batch at step 3: a batch loss of 9, and no few samples that would explain it",
        "bad_samples at step 4: 1 of 4 samples carry 100% of a batch loss of nan: ['b']",
    ]


odd = st.sampled_from([nan, inf, -inf, 0.0, 40.0])
batches = st.lists(
    st.tuples(st.floats(0, 10) | odd, st.lists(st.floats(0, 10, width=32) | odd, max_size=5)), max_size=30
)


@given(drawn=batches, cut=st.integers(0, 30))
@examples(60)
def test_no_batch_after_an_event_changes_a_decision_up_to_it(drawn: list[tuple[float, list[float]]], cut: int) -> None:
    """Truncating the stream, or poisoning later samples, leaves every earlier decision unchanged."""
    policy = policy_text("window_size: 4", rule="batch.is_bad or batch.share >= 0")
    stream = [batch(loss, losses, step=step) for step, (loss, losses) in enumerate(drawn, start=1)]
    poisoned = [event._replace(metrics={"loss": nan}, samples=packed([nan])) for event in stream[cut:]]

    whole = [entry for entry in outcomes_of(policy, stream) if entry[0] <= cut]
    truncated = outcomes_of(policy, stream[:cut])
    after_poison = [entry for entry in outcomes_of(policy, [*stream[:cut], *poisoned]) if entry[0] <= cut]

    assert whole == truncated == after_poison

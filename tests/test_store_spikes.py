"""The samples that drove a spike are found among many, by comparison with normal losses and their own past."""

from __future__ import annotations

import json
import math
import statistics
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import TelemetryError, open_run, open_store
from steptape.store.events import INTEGER_IDS, NO_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info
from steptape.store.sql.statements import SPIKE_COLUMNS

NAN, INF = math.nan, math.inf

Record = Callable[..., Path]


def losses_of(losses: Sequence[float], ids: Sequence[str] | None = None) -> SampleLosses:
    """Return a block of samples."""
    packed = struct.pack(f"<{len(losses)}f", *losses)
    return (
        SampleLosses(packed, b"", NO_IDS) if ids is None else SampleLosses(packed, json.dumps(ids).encode(), TEXT_IDS)
    )


def recorded(record: Record, blocks: Sequence[SampleLosses | None], **more: Any) -> Path:
    """Write a run with an update for each block, the first at step 1."""
    events = [Event("step_end", step=step) for step in range(1, len(blocks) + 1)]
    return record(events, samples={index: block for index, block in enumerate(blocks) if block is not None}, **more)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("spread", "radius"), [(0.5, 4), (0.8, 2), (1.0, 1)])
def test_twenty_bad_samples_are_found_among_a_hundred_thousand(
    store_record: Record, seed: int, spread: float, radius: int
) -> None:
    """At least 19 of them are in the top 50; normal losses are heavy-tailed, and some exceed bad ones."""
    source = np.random.default_rng(seed)
    steps, batch, spike = 1_563, 64, 1_200
    losses = source.lognormal(0.5, spread, (steps, batch)).astype("<f4")
    around = np.arange((spike - radius - 1) * batch, (spike + radius) * batch)
    bad = source.choice(around, 20, replace=False)
    losses.ravel()[bad] = np.median(losses) * source.uniform(5, 15, 20)
    ids = source.integers(0, 50_000, (steps, batch), np.int64)
    blocks = [SampleLosses(row.tobytes(), own.tobytes(), INTEGER_IDS) for row, own in zip(losses, ids, strict=True)]
    table = open_run(recorded(store_record, blocks, sealed=True)).spiking_samples(spike, radius=radius)

    places = {(row["step"] - 1) * batch + row["position"] for row in table.to_pylist()}

    assert len(places) == 50
    assert len(places & set(bad.tolist())) >= 19


BLOCKS = st.lists(
    st.none() | st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.5, 9.0, NAN, INF, -INF]), st.sampled_from("abcd"))),
    min_size=1,
    max_size=8,
)


def plainly(blocks: list[Any], step: int, radius: int, top: int, baseline: int) -> list[tuple[Any, ...]]:
    """Apply the definition, sample by sample."""
    rows = [(s, p, name, loss) for s, block in enumerate(blocks, 1) for p, (loss, name) in enumerate(block or ())]
    around = [row for row in rows if abs(row[0] - step) <= radius]
    past = [row for row in rows if row[0] < step - radius]
    counted = sorted({row[0] for row in past})[-baseline:]
    normal = [row[3] for row in past if row[0] in counted and math.isfinite(row[3])]
    normal = normal or [row[3] for row in around if math.isfinite(row[3])]
    typical = statistics.median(normal) if normal else None
    excess = [row[3] - typical if math.isfinite(row[3]) else row[3] for row in around]
    broken = [math.isnan(row[3]) or row[3] == INF for row in around]
    total = sum(each for each in excess if each > 0)
    result = []
    for (at, place, name, loss), own, is_broken in zip(around, excess, broken, strict=True):
        part = is_broken / sum(broken) if any(broken) else max(own, 0) / total if total else 0
        earlier = [row[3] for row in past if row[2] == name]
        finite = [value for value in earlier if math.isfinite(value)]
        mean = statistics.fmean(finite) if finite else None
        result.append((at, place, name, loss, typical, own, round(part, 9), len(earlier), mean))
    result.sort(key=lambda row: (not math.isnan(row[3]), 0 if math.isnan(row[3]) else -row[3], row[0], row[1]))
    return result[:top]


@examples(60)
@given(
    blocks=BLOCKS,
    at=st.integers(0, 7),
    radius=st.integers(0, 2),
    top=st.integers(1, 6),
    baseline=st.integers(1, 3),
    is_sealed=st.booleans(),
)
def test_what_is_found_is_what_the_definition_says(
    store_record: Record, tmp_path_factory: Any, blocks: list[Any], at: int, radius: int, top: int, baseline: int,
    is_sealed: bool,
) -> None:  # fmt: skip
    """Losses may be NaN or infinite; journal and Parquet, Python and SQL agree."""
    step = 1 + at % len(blocks)
    packed = [block and losses_of([loss for loss, _ in block], [name for _, name in block]) for block in blocks]
    folder = recorded(store_record, packed, root=tmp_path_factory.mktemp("spikes"), sealed=is_sealed)
    run = open_run(folder)
    rows = run.spiking_samples(step, radius=radius, top=top, baseline=baseline).to_pylist()
    macro = f"FROM spiking_samples({step}, radius := {radius}, top := {top}, baseline := {baseline})"

    assert str(run.rows(f"SELECT * EXCLUDE (run_id, name) {macro}")) == str(rows)
    measures = ("step", "position", "sample_id", "loss", "typical", "excess", "share", "seen", "earlier_loss")
    found = [tuple(round(row[m], 9) if m == "share" else row[m] for m in measures) for row in rows]
    assert str(found) == str(
        [(*row[:6], float(row[6]), *row[7:]) for row in plainly(blocks, step, radius, top, baseline)]
    )


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_step_without_samples_yields_the_same_columns_and_no_row(store_record: Record, is_sealed: bool) -> None:
    """A loop that samples every tenth update is queried at others too."""
    run = open_run(recorded(store_record, [losses_of([1.0]), None], sealed=is_sealed))
    with_samples, without = run.spiking_samples(1), run.spiking_samples(2)

    assert (with_samples.num_rows, without.num_rows) == (1, 0)
    assert with_samples.schema == without.schema
    assert tuple(without.column_names) == SPIKE_COLUMNS


def test_a_step_that_the_run_has_not_is_an_error(store_record: Record) -> None:
    """The error names the existing steps."""
    run = open_run(recorded(store_record, [losses_of([1.0]), None]))
    nothing = open_run(store_record([], run_id="run-2"))

    with pytest.raises(TelemetryError, match=r"run-1: the run has no such step; got 3. Its steps are 1 to 2"):
        run.spiking_samples(3)
    with pytest.raises(TelemetryError, match=r"run-2: the run has no such step; got 3. It has no events"):
        nothing.spiking_samples(3)


@pytest.mark.parametrize("arguments", [{"radius": -1}, {"top": 0}, {"baseline": 0}])
def test_a_number_out_of_range_is_an_error(store_record: Record, arguments: dict[str, int]) -> None:
    """The answer is not empty."""
    run = open_run(recorded(store_record, [losses_of([1.0])]))

    with pytest.raises(TelemetryError, match=f"{next(iter(arguments))} must be at least"):
        run.spiking_samples(1, **arguments)


def test_a_sample_without_an_id_was_seen_an_unknown_number_of_times(store_record: Record) -> None:
    """The count is null, not zero."""
    run = open_run(recorded(store_record, [losses_of([1.0]), losses_of([2.0])]))
    (row,) = run.spiking_samples(2).to_pylist()

    assert (row["seen"], row["earlier_loss"]) == (None, None)


def test_updates_without_samples_do_not_use_up_the_baseline(store_record: Record) -> None:
    """With samples every tenth update, the baseline is the last two of those, not the last two updates."""
    blocks = [losses_of([float(step)]) if step % 10 == 0 else None for step in range(1, 41)]
    (row,) = open_run(recorded(store_record, blocks)).spiking_samples(40, baseline=2).to_pylist()

    assert (row["loss"], row["typical"]) == (40.0, 25.0)


def test_what_a_resume_rolled_back_drove_no_spike(store_record: Record) -> None:
    """It counts neither as a sample of the step nor as the past of one."""
    first = [Event("step_end", step=step) for step in (1, 2, 3)]
    second = [Event("step_end", step=step, attempt=1) for step in (2, 3)]
    values = [1.0, 70.0, 80.0, 2.0, 9.0]
    blocks = {index: losses_of([value], ["a"]) for index, value in enumerate(values)}
    folder = store_record([*first, *second], samples=blocks, sealed=True)
    attempts = (Attempt(0, "crashed", 0), Attempt(1, "completed", 0, 1, parent=0, from_step=1))
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))
    (row,) = open_run(folder).spiking_samples(3).to_pylist()

    assert (row["attempt"], row["loss"], row["typical"], row["seen"], row["earlier_loss"]) == (1, 9.0, 1.5, 2, 1.5)


def test_in_sql_every_run_of_a_store_is_judged_on_its_own(store_record: Record, store_path: Path) -> None:
    """Each run has its own baseline and its own top, and is named."""
    for name, scale in (("run-1", 1.0), ("run-2", 100.0)):
        folder = recorded(store_record, [losses_of([scale]), losses_of([scale, 3 * scale, 5 * scale])], run_id=name)
    seal(folder)
    rows = open_store(store_path).rows("SELECT run_id, name, excess, share FROM Spiking_Samples(2, top := 1)")

    assert rows == [
        {"run_id": "run-1", "name": "run-1", "excess": 4.0, "share": 4 / 6},
        {"run_id": "run-2", "name": "run-2", "excess": 400.0, "share": 4 / 6},
    ]

"""Events come with the sample losses of their step, equal from a journal, from Parquet and from both."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import open_run
from steptape.store.errors import DamagedLog
from steptape.store.event_json import event_to_line
from steptape.store.events import INTEGER_IDS, TEXT_IDS, Event, SampleLosses, id_texts, loss_values
from steptape.store.journal.format import compact_json
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info

INTEGERS = SampleLosses(struct.pack("<2f", 0.1, float("nan")), struct.pack("<2q", -7, 2**62), INTEGER_IDS)
TEXTS = SampleLosses(struct.pack("<f", 3e38), '["Größe,\\"1\\""]'.encode(), TEXT_IDS, struct.pack("<i", 12))
#: The characters that UTF-8 can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
UNNAMED = SampleLosses(struct.pack("<3f", 1.0, -0.0, float("-inf")))


def facts(samples: SampleLosses | None) -> Any:
    """Return the visible content of sample losses, floats by their bits."""
    if samples is None:
        return None
    return samples.losses, [loss.hex() for loss in loss_values(samples)], id_texts(samples), samples.tokens


def sampled(events: Iterable[Event]) -> list[Any]:
    """Return the position of each event, and its sample losses."""
    return [(event.attempt, event.rank, event.seq, facts(event.samples)) for event in events]


def test_losses_and_ids_are_values_whatever_they_were_packed_from() -> None:
    """Losses are the recorded float32, ids are text, or None without any."""
    assert loss_values(TEXTS) == (struct.unpack("<f", struct.pack("<f", 3e38))[0],)
    assert [id_texts(samples) for samples in (INTEGERS, TEXTS, UNNAMED)] == [
        ["-7", "4611686018427387904"],
        ['Größe,"1"'],
        None,
    ]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [(b'["a"', TEXT_IDS), (b"3", TEXT_IDS), (b'["a"]', TEXT_IDS), (bytes(12), INTEGER_IDS), (bytes(8), INTEGER_IDS)],
)
def test_ids_that_do_not_fit_their_samples_are_a_damaged_log(ids: bytes, kind: int) -> None:
    """A checksum does not guarantee that the content makes sense."""
    with pytest.raises(DamagedLog, match="sample ids that cannot be read"):
        id_texts(SampleLosses(bytes(8), ids, kind))


@pytest.mark.parametrize("segment_bytes", [1 << 26, 200])
def test_events_come_with_their_sample_losses_from_tail_and_parquet(
    store_record: Callable[..., Path], store_steps: Callable[..., list[Event]], segment_bytes: int
) -> None:
    """Steps without samples lie between steps with samples, in one file and in several."""
    given = {0: INTEGERS, 1: TEXTS, 3: UNNAMED, 5: INTEGERS}
    folder = store_record(store_steps([1.0] * 7), samples=given, segment_bytes=segment_bytes)
    expected = [(0, 0, seq, facts(given.get(seq))) for seq in range(7)]
    run = open_run(folder)
    from_tail = sampled(run.events(samples=True))
    seal(folder)

    assert (from_tail, sampled(run.events(samples=True))) == (expected, expected)


@examples(25)
@given(
    blocks=st.lists(st.lists(st.tuples(st.floats(width=32), TEXT), max_size=3), max_size=5),
)
def test_sample_losses_of_events_survive_sealing_to_the_bit(
    store_record: Callable[..., Path],
    store_steps: Callable[..., list[Event]],
    tmp_path_factory: pytest.TempPathFactory,
    blocks: list[list[tuple[float, str]]],
) -> None:
    """Losses and ids may be any; a step with an empty batch has none."""
    packed = {index: _packed(block) for index, block in enumerate(blocks)}
    folder = store_record(store_steps([1.0] * len(blocks)), samples=packed, root=tmp_path_factory.mktemp("s"))
    run = open_run(folder)
    before = sampled(run.events(samples=True))
    seal(folder)

    assert before == sampled(run.events(samples=True))
    assert [entry[3] for entry in before] == [facts(packed[i]) if block else None for i, block in enumerate(blocks)]


def _packed(block: list[tuple[float, str]]) -> SampleLosses:
    losses = struct.pack(f"<{len(block)}f", *(loss for loss, _ in block))
    return SampleLosses(losses, compact_json([text for _, text in block]), TEXT_IDS)


def test_ids_that_look_like_integers_are_the_texts_that_they_were(
    store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]
) -> None:
    """This holds even if a file has no other ids."""
    ids = ["007", "+1", "-0", " 1", "1_0", "99999999999999999999"]
    for index, text in enumerate(ids):
        samples = SampleLosses(bytes(4), compact_json([text]), TEXT_IDS)
        run = open_run(store_record(store_steps([1.0]), run_id=f"r{index}", samples={0: samples}, sealed=True))

        assert [id_texts(event.samples) for event in run.events(samples=True) if event.samples] == [[text]]


def test_without_asking_events_carry_no_sample_losses(
    store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]
) -> None:
    """They are the greater part of a log."""
    run = open_run(store_record(store_steps([1.0]), samples={0: UNNAMED}))

    assert [event.samples for event in run.events()] == [None]


def test_event_json_is_the_same_with_and_without_sample_losses(
    store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]
) -> None:
    """Lines hold only envelope and payload."""
    run = open_run(store_record(store_steps([1.0]), samples={0: UNNAMED}))

    assert [*map(event_to_line, run.events(samples=True))] == [*map(event_to_line, run.events())]


def test_a_metric_may_be_called_samples(store_record: Callable[..., Path]) -> None:
    """The field does not reserve a column's name."""
    run = open_run(store_record([Event("step_end", metrics={"samples": 64.0})], sealed=True))

    assert run.table()["samples"].to_pylist() == [64.0]
    assert [dict(event.metrics) for event in run.events(samples=True)] == [{"samples": 64.0}]


@pytest.mark.parametrize("sealed", [False, True])
def test_sample_losses_follow_ranks_and_lineage(store_record: Callable[..., Path], sealed: bool) -> None:
    """Each rank has its own, and a resumed attempt's parent contributes only what was not rolled back."""
    where = [(0, 0), (0, 1), (1, 0), (1, 1)]
    events = [Event("step_end", step=step, attempt=a, rank=r) for a, r in where for step in (1 + a, 2 + a)]
    packed = {index: SampleLosses(struct.pack("<f", index)) for index in range(len(events))}
    folder = store_record(events, samples=packed)
    attempts = (Attempt(0, "failed", 1), Attempt(1, "completed", 2, parent=0, parent_seq=0, from_step=1))
    write_run_info(folder, RunInfo("run-1", "run-1", attempts))
    if sealed:
        seal(folder)
    run = open_run(folder)

    def losses(events: Iterable[Event]) -> list[float]:
        return [loss for event in events if event.samples for loss in loss_values(event.samples)]

    assert losses(run.events(samples=True)) == [0, 4, 5]
    assert losses(run.events(rank=1, samples=True)) == [2, 6, 7]
    assert losses(run.events(rank=None, samples=True)) == [0, 2, 4, 6, 5, 7]
    assert losses(run.events(rank=0, attempts="all", samples=True)) == [0, 1, 4, 5]
    ((_, held),) = run.ancestry(attempts[1], samples=True)
    assert losses(held) == [0]
    assert losses(run.ancestry(attempts[1])[0][1]) == []

"""Checking frames in groups gives the same result as checking them one by one."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.store.journal.format import FRAME, MAGIC, PREAMBLE, VERSION, framed
from steptape.store.journal.segment_reading import CHECKED_TOGETHER_BYTES, LONG_RUN, runs_of_frames


def journal(lengths: list[int], seed: int = 0) -> bytes:
    """Return frames with random payloads of these lengths."""
    source = random.Random(seed)
    return PREAMBLE.pack(MAGIC, VERSION) + b"".join(framed(source.randbytes(length)) for length in lengths)


def whole_frames(data: bytes) -> int:
    """Return the number of frames that the reader accepts."""
    return sum(count for _, _, count in runs_of_frames(data))


def whole_one_by_one(data: bytes) -> int:
    """Return the number of frames before the first that is truncated or fails its own checksum."""
    position, count = PREAMBLE.size, 0
    while position + FRAME.size <= len(data):
        length, checksum = FRAME.unpack_from(data, position)
        payload = data[position + FRAME.size : position + FRAME.size + length]
        if not length or len(payload) < length or zlib.crc32(payload) != checksum:
            break
        position += FRAME.size + length
        count += 1
    return count


@pytest.mark.parametrize("length", [1, 3, 4, 5, 54, 134, 908, 5_000, CHECKED_TOGETHER_BYTES, 20_000])
@pytest.mark.parametrize("count", [1, LONG_RUN, 3 * LONG_RUN + 1])
def test_every_frame_of_an_undamaged_run_is_whole(length: int, count: int) -> None:
    """Lengths range from below a checksum's to above that of a group."""
    assert whole_frames(journal([length] * count)) == count


def test_more_frames_than_are_put_into_order_at_once_are_all_whole() -> None:
    """The last piece of a long run is a short one."""
    assert whole_frames(journal([134] * 5_001)) == 5_001


@pytest.mark.parametrize("length", [5, 134, 908])
def test_a_flipped_bit_anywhere_ends_the_journal_at_its_frame(length: int) -> None:
    """The bit is in a length, a checksum or a payload, in the first frame, the last, and at each edge of a group."""
    data, stride = journal([length] * 200), FRAME.size + length
    places = {
        *range(PREAMBLE.size, PREAMBLE.size + 2 * stride),
        *range(len(data) - stride, len(data)),
        *range(PREAMBLE.size, len(data), 37),
    }
    for place in places:
        for bit in (0, 7):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit

            assert whole_frames(bytes(damaged)) == (place - PREAMBLE.size) // stride


@given(
    lengths=st.lists(st.sampled_from([20, 20, 20, 134]), min_size=1, max_size=12),
    repeats=st.integers(1, 120),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=40)), max_size=4),
    cut=st.floats(0, 1),
)
def test_frames_checked_together_are_those_checked_one_by_one(
    lengths: list[int], repeats: int, damage: list[tuple[float, bytes]], cut: float
) -> None:
    """Bytes are overwritten, in several frames at once too, and the file is cut anywhere."""
    data = bytearray(journal([length for length in lengths for _ in range(repeats)]))
    for place, written in damage:
        begin = PREAMBLE.size + int(place * (len(data) - PREAMBLE.size))
        data[begin : begin + len(written)] = written[: len(data) - begin]
    del data[max(PREAMBLE.size, int(cut * len(data))) :]

    assert whole_frames(bytes(data)) == whole_one_by_one(bytes(data))


def test_two_frames_with_the_same_damage_do_not_hide_each_other() -> None:
    """Errors combine linearly within a group, and equal ones must not cancel out."""
    data, stride = journal([134] * 64), FRAME.size + 134
    for distance in range(1, 60):
        damaged = bytearray(data)
        for frame in (2, 2 + distance):
            for offset, value in enumerate(b"same damage"):
                damaged[PREAMBLE.size + frame * stride + 30 + offset] ^= value

        assert whole_frames(bytes(damaged)) == 2


def test_frames_whose_payloads_changed_places_are_damaged() -> None:
    """Their checksums belong to other payloads."""
    data, stride = bytearray(journal([134] * 64)), FRAME.size + 134
    first, second = (PREAMBLE.size + frame * stride + FRAME.size for frame in (5, 9))
    data[first : first + 134], data[second : second + 134] = data[second : second + 134], data[first : first + 134]

    assert whole_frames(bytes(data)) == 5

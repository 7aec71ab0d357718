"""Helpers for tests of pushes: runs with all that a log may hold, and the comparison of two folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

from steptape.store.events import INTEGER_IDS, TEXT_IDS, JsonObject, SampleLosses, Vectors
from steptape.store.journal.writer import JournalWriter
from steptape.store.own_process import WriterIdentity, boot_id, host_name
from steptape.store.parquet.digests import read_digests
from steptape.store.run_info import Attempt, RunInfo, write_run_info

RUN = "20260101T000000-aaaaaa"
NAN = float("nan")
HERE: WriterIdentity = {"host": host_name(), "boot_id": boot_id(), "pid": os.getpid()}


def samples_of(step: int) -> SampleLosses | None:
    """Sample losses of each kind in turn: integer ids, text ids with tokens and token losses, none, no ids."""
    losses = b"\x00\x00\x80\x3f\x00\x00\xc0\x7f\x00\x00\x00\x40"  # 1, NaN, 2
    if step % 4 == 0:
        return SampleLosses(losses, b"".join(i.to_bytes(8, "little", signed=True) for i in (7, -8, step)), INTEGER_IDS)
    if step % 4 == 1:
        tokens = b"".join(n.to_bytes(4, "little") for n in (3, 4, 5))
        places = b"".join(n.to_bytes(4, "little") for n in (0, 2, 9))
        flagged = b"".join(n.to_bytes(4, "little") for n in (2, 0))
        lengths = b"".join(n.to_bytes(4, "little") for n in (2, 0))
        ids = json.dumps(["ä", "b\n", str(step)]).encode()
        return SampleLosses(losses, ids, TEXT_IDS, tokens, places, flagged, lengths, losses[:8])
    return SampleLosses(losses) if step % 4 == 3 else None


class Loop:
    """A loop that writes one stream of a run with everything that a log may hold.

    Args:
        store: A folder of runs.
        rank: Its rank; rank 0 writes ``run.json``.
        attempt: Its attempt.
        first_seq: The ``seq`` that it begins with.
        segment_bytes: Size of its segments.
        run_id: The run.
        began_ns: The time of its first event.
        pid: The process in its ``run.json``.
        recording: The identity in its segments.
    """

    def __init__(
        self,
        store: Path,
        *,
        rank: int = 0,
        attempt: int = 0,
        first_seq: int = 0,
        segment_bytes: int = 20_000,
        run_id: str = RUN,
        began_ns: int = 10**18,
        pid: int | None = None,
        recording: str = "",
    ) -> None:
        self.folder = store / run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self._attempt, self._rank, self._run_id, self._began_ns = attempt, rank, run_id, began_ns
        self._environment: JsonObject = {"host": "node", "pid": pid} if pid else {}
        self.writer = JournalWriter(
            self.folder,
            run_id=run_id,
            attempt=attempt,
            rank=rank,
            first_seq=first_seq,
            writer=HERE,
            recording=recording,
            segment_bytes=segment_bytes,
        )
        if rank == 0:
            self.write("running")

    def write(self, status: str) -> None:
        """Write ``run.json``."""
        ended = None if status == "running" else 9
        attempts = [Attempt(number, "crashed", 100 + number) for number in range(self._attempt)]
        last = Attempt(self._attempt, status, 100 + self._attempt, ended, environment=self._environment)
        write_run_info(self.folder, RunInfo(self._run_id, "ünder", (*attempts, last), config={"lr": 0.1}))

    def steps(self, count: int, *, metrics: int = 3) -> None:
        """Append steps, each with metrics that differ from the one before."""
        for _ in range(count):
            step = self.writer.seq
            names = ("loss", "Loss", "", *(f"m{n}" for n in range(step % 7, metrics)))
            attrs = {"text": "☃", "n": 10**20, "f": 0.1, "bad": "NaN"} if step % 3 == 0 else {}
            vectors: Vectors = {"load": [1.0, NAN, step], "": []} if step % 5 == 0 else {}
            self.writer.append(
                "step_end" if step % 2 else "custom:x",
                names,
                [NAN if step % 6 == 0 else step / 7, -0.0, float("inf"), *map(float, range(len(names) - 3))],
                step=step,
                epoch=step / 10 if step % 4 else NAN,
                time_ns=self._began_ns + step,
                elapsed_ns=step * 10**6,
                value_lag=step % 2,
                attrs=json.dumps(attrs).encode() if attrs else b"",
                samples=samples_of(step),
                vectors=vectors,
            )

    def end(self, status: str = "completed") -> None:
        """Write the end and close the journal."""
        if not self._rank:
            self.write(status)
        self.writer.close()


def digests_of(folder: Path) -> dict[tuple[int, int], str]:
    """The log digests of a run by attempt and rank."""
    return {stream: digest.sha256 for stream, digest in read_digests(folder).logs.items()}

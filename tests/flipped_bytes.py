"""Flips bytes of a sealed run and asks ``verify``. As a program, it flips each byte of each file, one bit of it."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from steptape import Recorder, TelemetryError, open_run, verify

#: The files of a sealed run, by the beginnings of their names.
FILES = ("events", "samples", "vectors", "metrics", "run.json", "columns.json", "digests.json", "summary.jsonl")


def run_of_all_tables(store: Path, metrics: int = 515) -> Path:
    """Record a short run with samples, vectors and more metrics than there are columns."""
    with Recorder(store, name="small", config={"lr": 1e-05}, quiet=True) as rec:
        for step in range(1, 5):
            more = {f"m{i}": 1.0 for i in range(metrics)} if step == 1 else {}
            rec.step({"loss": 1 / step, **more}, samples=[1.0, 2.0], sample_ids=[1, 2], vectors={"x": [1.0]})
    rec.close(seal=True)
    return rec.folder


def flipped_bytes(folder: Path, name: str, parts: int | None = None) -> tuple[list[int], int]:
    """Flip one bit at a time of a file; return the places that ``verify`` does not see, and the number of places.

    Args:
        folder: The run's folder. The file is whole again afterwards.
        name: The beginning of the file's name.
        parts: The number of bytes, evenly spread; all when None.
    """
    (path,) = folder.glob(f"{name}*")
    content = path.read_bytes()
    places = range(len(content)) if parts is None else [len(content) * part // parts for part in range(parts)]
    unseen = []
    for at in places:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            if verify(open_run(folder)).identical:
                unseen.append(at)
        except TelemetryError:
            continue
        finally:
            path.write_bytes(content)
    return unseen, len(places)


def main() -> None:
    """Print the number of bytes of each file, and those of them that ``verify`` does not see when they are flipped."""
    with TemporaryDirectory() as store:
        # Columns of metrics would make the footer long. Those beyond the columns are in a test.
        folder = run_of_all_tables(Path(store), int(sys.argv[1]) if sys.argv[1:] else 2)
        for path in sorted(folder.iterdir()):
            unseen, count = flipped_bytes(folder, path.name)
            print(f"{path.name}: {count} bytes, {len(unseen)} unseen {unseen[:10]}", flush=True)


if __name__ == "__main__":
    main()

"""A sealer killed at any of its steps loses or doubles no event, then or after the next seal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sealed_content import EVENTS, SAMPLES, content, names
from waiting import PATIENCE_S

from steptape.store.columns import METRICS_AS_COLUMNS
from steptape.store.parquet.sealing import seal

KILLED = """
import fcntl, functools, itertools, json, os, shutil, sys
from pathlib import Path
from steptape.store.parquet import sealing

template, target = Path(sys.argv[1]), Path(sys.argv[2])

def counted(function, calls, fatal):
    @functools.wraps(function)
    def step(*arguments, **options):
        calls.append(function.__name__)
        if len(calls) == fatal:
            if function.__name__ == "write_tables":
                function(*arguments, **options)
                file = arguments[2]
                file.truncate(file.tell() // 2)
            os._exit(9)
        return function(*arguments, **options)
    return step

deaths = []
for fatal in itertools.count(1, int(sys.argv[4])):
    folder = target / f"run-{fatal}"
    shutil.copytree(template, folder)
    if os.fork() == 0:
        calls = []
        for name in ("fsync", "replace", "rename", "unlink"):
            setattr(os, name, counted(getattr(os, name), calls, fatal))
        sealing.write_tables = counted(sealing.write_tables, calls, fatal)
        if sys.argv[3] == "live":
            held = open(max(folder.glob("journal-*")))
            fcntl.flock(held, fcntl.LOCK_EX)
        sealing.seal(folder)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
        break
    deaths.append(folder.name)
print(json.dumps(deaths))
"""


def test_a_sealer_killed_at_any_of_its_steps_loses_and_doubles_nothing(
    store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """It dies before each fsync, rename and deletion and within each write; reads follow at once and after a seal."""
    template = store_record(EVENTS, samples=SAMPLES, segment_bytes=1500)
    deaths = die_at_every_step(template, tmp_path)

    assert len(deaths) >= 25
    assert {tuple(files) for files in deaths.values()} == {
        ("events-0-0-000000000000-000000000023.parquet", "samples-0-0-000000000000-000000000023.parquet")
    }


def test_a_sealer_killed_at_any_of_its_steps_keeps_metrics_beyond_the_columns(
    store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """This is the third table, whose rows belong to events of the first."""
    wide = {f"m{index}": index / 7 for index in range(METRICS_AS_COLUMNS + 2)}
    events = [event._replace(metrics={**wide, **event.metrics}) for event in EVENTS[:4]]
    template = store_record(events, samples=SAMPLES, segment_bytes=9_000)
    deaths = die_at_every_step(template, tmp_path, stride=3)  # A death of so wide a table costs 1.3 s.

    assert len(deaths) >= 9
    assert {tuple(name.split("-")[0] for name in files) for files in deaths.values()} == {
        ("events", "metrics", "samples")
    }


def test_a_sealer_of_a_live_run_killed_at_any_of_its_steps_loses_and_doubles_nothing(
    store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """It merges some of the files, while the last segment is still being written."""
    template = store_record(EVENTS, samples=SAMPLES, segment_bytes=600)
    deaths = die_at_every_step(template, tmp_path, is_live=True)

    assert len(deaths) >= 40
    assert {files[-1].startswith("samples") or files[-1].startswith("journal") for files in deaths.values()} == {True}


def die_at_every_step(
    template: Path, tmp_path: Path, *, is_live: bool = False, stride: int = 1
) -> dict[str, list[str]]:
    """Seal copies of a run, each dying ``stride`` steps later; return what each holds after one more seal.

    Asserts that every copy reads as the run did, right after the death and in the end.
    """
    before = content(template)
    target = tmp_path / "killed"
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, template, target, "live" if is_live else "dead", str(stride)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    deaths = json.loads(done.stdout)
    afterwards = {death: content(target / death) for death in deaths}
    for death in deaths:
        seal(target / death)
    assert [death for death in deaths if afterwards[death] != before] == []
    assert [death for death in deaths if content(target / death) != before] == []
    return {death: names(target / death) for death in deaths}

"""Whatever a logger or a container puts before a line, the line is read as without it; a clock there is the run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from text_log_forms import FORMS

from steptape.importers.readers.text_log import TextLogReader
from steptape.importers.source import ReadOptions

#: Kind, step, metrics and time of an event. NaN is text here: it equals itself.
Told: TypeAlias = tuple[str, int, dict[str, str], int]

#: 2024-01-02 10:00:00 UTC.
T0: Final = 1_704_189_600_000_000_000
HALF: Final = 500_000_000
ZONE: Final = 3_600_000_000_000

#: What is written before a line, and the time that it says; 0 where it has none with a year.
HEADS: dict[str, int] = {
    "2024-01-02 10:00:00 ": T0,
    "2024-01-02 10:00:00: ": T0,
    "2024-01-02 10:00:00,500 ": T0 + HALF,
    "2024-01-02 10:00:00.500000 ": T0 + HALF,
    "2024/01/02 10:00:00 ": T0,
    "20240102 10:00:00 ": T0,
    "[2024-01-02 10:00:00] ": T0,
    "(2024-01-02 10:00:00) ": T0,
    "2024-01-02T10:00:00Z ": T0,
    "2024-01-02T10:00:00.500000000Z ": T0 + HALF,
    "2024-01-02T10:00:00+0100 ": T0 - ZONE,
    "2024-01-02T10:00:00-01:00 ": T0 + ZONE,
    "2024-01-02 10:00:00 UTC ": T0,
    "2024-01-02T10:00:00.5Z stdout F ": T0 + HALF,
    "2024-01-02T10:00:00Z 2024-01-02 11:00:00,250 - root - INFO - ": T0,
    "1704189600 ": T0,
    "1704189600.5 ": T0 + HALF,
    "[1704189600.5] ": T0 + HALF,
    "Tue Jan  2 10:00:00 2024 ": T0,
    "Tue, 02 Jan 2024 10:00:00 GMT ": T0,
    "02-Jan-2024 10:00:00 ": T0,
    "Jan  2 10:00:00 ": 0,
    "Jan 02 10:00:00 node7 python[123]: ": 0,
    "10:00:00 ": 0,
    "[10:00:00] ": 0,
    "01/02 10:00:00 ": 0,
    "01/02/2024 10:00:00 - INFO - __main__ - ": 0,
    "I0102 10:00:00.500000  1234 solver.cpp:330] ": 0,
    "[0102 10:00:00 @base.py:10] ": 0,
    "[01/02 10:00:00 d2.utils.events]: ": 0,
    "2024-01-02 10:00:00,500 - root - INFO - ": T0 + HALF,
    "2024-01-02 10:00:00,500 INFO ": T0 + HALF,
    "2024-01-02 10:00:00 | INFO     | __main__:main:42 - ": T0,
    "2024-01-02 10:00:00 [info     ] ": T0,
    "2024-01-02 10:00:00.500000: I tensorflow/core/loop.cc:10] ": T0 + HALF,
    "[2024-01-02 10:00:00,500] [INFO] [logging.py:96:log_dist] [Rank 0] ": T0 + HALF,
    "[2024-01-02 10:00:00,500][__main__][INFO] - ": T0 + HALF,
    "[2024-01-02 10:00:00,500 INFO] ": T0 + HALF,
    "[INFO|trainer.py:1148] 2024-01-02 10:00:00,500 >> ": T0 + HALF,
    "[NeMo I 2024-01-02 10:00:00 nemo_logging:349] ": T0,
    "[rank0]:[titan] 2024-01-02 10:00:00,500 - root - INFO - ": T0 + HALF,
    "INFO     2024-01-02 10:00:00 ": T0,
    "INFO ": 0,
    "INFO: ": 0,
    "[INFO] ": 0,
    "INFO:root:": 0,
    "INFO:__main__:": 0,
    "train.py:10 ": 0,
    "src/train.py:10: ": 0,
    "[train.py:10] ": 0,
    "[rank0]: ": 0,
    "[default0]:": 0,
    "Rank 0: ": 0,
    "0: ": 0,
    "[1,0]<stdout>:": 0,
    "(RayTrainWorker pid=1234, ip=10.0.0.1) ": 0,
    "trainer-1  | ": 0,
    "[pod/trainer-0/main] ": 0,
}


def told(path: Path, text: str) -> list[Told]:
    """Return the events of a log that is one run."""
    path.write_text(text)
    reader = TextLogReader()
    assert reader.recognises(path, path.read_bytes()[:65_536])
    (facts,) = ([*run.facts] for run in reader.read([path], ReadOptions()))
    return [
        (fact.kind, fact.step, {name: repr(value) for name, value in fact.metrics.items()}, fact.time_ns)
        for fact in facts
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Told]]:
    """Return the events of every form without a head."""
    path = tmp_path_factory.mktemp("plain") / "run.log"
    return {form: told(path, text) for form, (text, _) in FORMS.items()}


@pytest.mark.parametrize("head", HEADS)
def test_a_head_changes_nothing_but_the_clock(tmp_path: Path, head: str, plain: dict[str, list[Told]]) -> None:
    """Every form of line is tried, also those with a head of their own: containers write theirs before it."""
    headed = {
        form: told(tmp_path / "run.log", "".join(f"{head}{line}\n" for line in text.split("\n")[:-1]))
        for form, (text, _) in FORMS.items()
    }

    time_ns = HEADS[head]
    assert headed == {
        form: [(kind, step, metrics, time_ns or own) for kind, step, metrics, own in events]
        for form, events in plain.items()
    }


@pytest.mark.parametrize(
    "wrapped",
    [
        {"log": "{}", "stream": "stdout", "time": "2024-01-02T10:00:00.5Z"},
        {"message": "{}", "levelname": "INFO", "timestamp": "2024-01-02 10:00:00,500"},
        {"time": 1_704_189_600.5, "level": "info", "msg": "{}"},
    ],
)
def test_objects_of_containers_and_loggers_are_read_as_the_lines_in_them(
    tmp_path: Path, wrapped: dict[str, object], plain: dict[str, list[Told]]
) -> None:
    """As Docker's ``json-file`` and loggers of JSON write them."""
    headed = {
        form: told(
            tmp_path / "run.log",
            "".join(
                json.dumps({key: f"{line}\n" if held == "{}" else held for key, held in wrapped.items()}) + "\n"
                for line in text.split("\n")[:-1]
            ),
        )
        for form, (text, _) in FORMS.items()
    }

    assert headed == {
        form: [(kind, step, metrics, T0 + HALF) for kind, step, metrics, _ in events] for form, events in plain.items()
    }

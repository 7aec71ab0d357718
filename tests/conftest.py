"""Fixtures that several test files share. Fixtures named ``store_*`` write real runs into ``tmp_path``."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from object_storage import KEYS, ObjectService, Place
from suites import WHOLE_SUITE_ALONE, Stopwatch, slow_tests
from waiting import until

from steptape.store.event_json import encoded_attrs
from steptape.store.events import Event, SampleLosses
from steptape.store.journal.writer import SEGMENT_BYTES, JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run_info import Attempt, RunInfo, write_run_info

#: Folders of programs and cases, not of tests; one of the programs runs in another environment.
collect_ignore_glob = ["compat/*", "trackers/*"]

# Two workers on two cores leave torch and OpenBLAS one core each: more threads spin while they wait. The demo took 13 s
# of CPU instead of 26 s, and on a busy machine 47 s instead of more than 200 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline (200 ms by default) and no health checks, which judge a strategy by its duration: a busy machine would
# fail both. 'make explore' names another profile; drawing.py scales the counts that tests ask for.
settings.register_profile("explore", deadline=None, suppress_health_check=list(HealthCheck), max_examples=1_000)
settings.register_profile("reseeded", settings.get_profile("explore"), max_examples=100)
settings.register_profile(
    "repeated", settings.get_profile("reseeded"), derandomize=True, database=None, print_blob=True
)
settings.register_profile("quick", settings.get_profile("repeated"), max_examples=33)
settings.load_profile("repeated")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the two suites."""
    parser.addoption("--quick", action="store_true", help="leave out slow tests, and draw a third of the examples")
    parser.addoption("--record-seconds", action="store_true", help="measure each test for the choice of --quick")


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples in the quick suite, and when seconds are measured for it."""
    config.addinivalue_line("markers", "only_one: in the quick suite although it is slow, as the only one of its kind")
    if config.getoption("record_seconds"):
        config.pluginmanager.register(Stopwatch())
    if config.getoption("quick") or config.getoption("record_seconds"):
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect no garbage while tests are collected, nor look through them later: all stay, and that took 7 s of 22."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing that the quick suite does not run."""
    return True if config.getoption("quick") and collection_path.name in WHOLE_SUITE_ALONE else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out of the quick suite."""
    if not config.getoption("quick"):
        return
    slow = slow_tests(items)
    config.hook.pytest_deselected(items=slow)
    left_out = set(slow)
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Label what coverage measures with the test that runs, for ``mutants.py``."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(item.nodeid.partition("[")[0])


#: 2026-01-02 03:04:05 UTC.
STARTED_NS = 1_767_323_045_000_000_000


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the commands' cache among the tests' files, away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPTAPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quiet() -> Iterator[None]:
    """Keep the recorder's lines out of the output of tests and their child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPTAPE_QUIET", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Make child processes interruptible: a shell ignores SIGINT for its background jobs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def buffered() -> Iterator[None]:
    """Buffer the output of child processes, as users have it: output needed at once must be flushed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONUNBUFFERED", raising=False)
        yield


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """An empty store."""
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def store_folder(store_path: Path) -> Callable[..., Path]:
    """A function that makes run folders with a ``run.json`` and no event: ``store_folder(run_id, status=...)``."""

    def make(
        run_id: str = "run-1",
        *,
        root: Path | None = None,
        name: str | None = None,
        status: str = "completed",
        plan: Plan | None = None,
        ended_ns: int | None = STARTED_NS + 5_000_000_000,
        steps: int | None = None,
        reason: str | None = None,
        **info: Any,
    ) -> Path:
        folder = (root or store_path) / run_id
        folder.mkdir(parents=True)
        is_open = status == "running"
        ended_ns, steps = (None, None) if is_open else (ended_ns, steps)
        attempt = Attempt(0, status, STARTED_NS, ended_ns, plan or Plan(), steps=steps, reason=reason)
        write_run_info(folder, RunInfo(run_id, name or run_id, (attempt,), **info))
        return folder

    return make


@pytest.fixture(scope="session")
def store_append() -> Callable[..., int]:
    """A function that writes one event to a journal as it is: ``store_append(writer, event, samples)``."""

    def append(writer: JournalWriter, event: Event, samples: SampleLosses | None = None) -> int:
        return writer.append(
            event.kind,
            tuple(event.metrics),
            tuple(event.metrics.values()),
            step=event.step,
            micro_step=event.micro_step,
            epoch=float("nan") if event.epoch is None else event.epoch,
            time_ns=event.time_ns,
            elapsed_ns=event.elapsed_ns,
            value_lag=event.value_lag,
            attrs=encoded_attrs(event.attrs).encode() if event.attrs else b"",
            samples=samples,
            vectors=event.vectors,
        )

    return append


@pytest.fixture
def store_record(store_folder: Callable[..., Path], store_append: Callable[..., int]) -> Callable[..., Path]:
    """A function that writes whole runs: ``store_record(events, run_id=..., samples={index: losses}, sealed=True)``.

    The journal assigns the ``seq`` of each event. Events of one (attempt, rank) are contiguous.
    """

    def record(
        events: Iterable[Event],
        *,
        run_id: str = "run-1",
        samples: Mapping[int, SampleLosses] | None = None,
        sealed: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        **info: Any,
    ) -> Path:
        folder = store_folder(run_id, **info)
        numbered = enumerate(events)
        for (attempt, rank), stream in itertools.groupby(numbered, key=lambda entry: (entry[1].attempt, entry[1].rank)):
            writer = JournalWriter(folder, run_id=run_id, attempt=attempt, rank=rank, segment_bytes=segment_bytes)
            for index, event in stream:
                store_append(writer, event, (samples or {}).get(index))
            writer.close()
        if sealed:
            seal(folder)
        return folder

    return record


@pytest.fixture(scope="session")
def store_facts() -> Callable[[Iterable[Event]], list[Any]]:
    """A function that returns all fields of events for comparison, floats by bits (NaN equals NaN, 0.0 is not -0.0)."""

    def exact(value: Any) -> Any:
        return value.hex() if isinstance(value, float) else value

    def facts(events: Iterable[Event]) -> list[Any]:
        return [
            (
                *(exact(value) for value in event[:10]),
                {name: float(value).hex() for name, value in event.metrics.items()},
                dict(event.attrs),
            )
            for event in events
        ]

    return facts


@pytest.fixture(scope="session")
def store_steps() -> Callable[..., list[Event]]:
    """A function that makes ``step_end`` events: ``store_steps([1.0, 0.5], name="loss")``, from step 1 and seq 0 on."""

    def steps(values: Sequence[float], *, name: str = "loss", attempt: int = 0, rank: int = 0) -> list[Event]:
        return [
            Event(
                "step_end",
                step=index + 1,
                seq=index,
                attempt=attempt,
                rank=rank,
                time_ns=STARTED_NS + index,
                elapsed_ns=index,
                metrics={name: value},
            )
            for index, value in enumerate(values)
        ]

    return steps


@pytest.fixture(scope="session")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The store and the output of ``steptape demo``. Made once; tests must not write into it."""
    store = tmp_path_factory.mktemp("demo") / "runs"
    command = [sys.executable, "-m", "steptape", "demo", "--store", str(store)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    # A busy machine may seal for longer than the program waits.
    until(lambda: all((folder / "digests.json").exists() for folder in store.iterdir()))
    return store, result.stdout


@pytest.fixture(scope="session")
def demo_store(demo_output: tuple[Path, str]) -> Path:
    """The store of ``steptape demo``."""
    return demo_output[0]


@pytest.fixture(scope="session")
def object_service() -> Iterator[ObjectService]:
    """S3 on loopback."""
    pytest.importorskip("moto.server", reason="needs moto: pip install 'moto[server]'")
    service = ObjectService()
    yield service
    service.close()


@pytest.fixture
def bucket(
    object_service: ObjectService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Place]:
    """An empty bucket, which the environment names as AWS's tools expect it, and an empty cache."""
    own = {"AWS_ENDPOINT_URL": object_service.endpoint, "STEPTAPE_CACHE": str(tmp_path / "cache")}
    for name, value in {**KEYS, **own}.items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    yield Place(object_service, f"bucket-{digest[:12]}")
    object_service.fault = None


@pytest.fixture(scope="module")
def url(store: Path) -> Iterator[str]:
    """A server over the runs of the file's fixture ``store``; the folder around them holds its rule files."""
    from served_page import serving

    with serving(store, policies_path=store.parent) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium. A file has its own: while one runs, no other test of the process can run an event loop."""
    from browsing import chromium

    with chromium() as running:
        yield running


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """A function that opens pages: ``open_page("/runs/digits", width=390)``; the browser may report no error."""
    from browsing import pages

    with pages(browser, url) as opened:
        yield opened

"""A store in object storage reads as the store that it was pushed from, and its faults are said."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from object_storage import Answer, Fault, Place, cutting, failing
from waiting import until

from api_serving import served
from steptape import TelemetryError, backtest, load_policy, open_run, open_store, verify
from steptape.shipping.store_push import Backoff, push_once
from steptape.shipping.targets import ObjectTarget
from steptape.store.annotations import Annotation, append_annotation
from steptape.store.errors import DamagedLog, ReadOnlyStore, StoreAway, StoreNotFound
from steptape.store.events import Event
from steptape.store.objects import mirror as mirrors
from steptape.store.objects.mirror import Mirror, mirror_for
from steptape.store.objects.mirror_access import fetching_ahead
from steptape.store.parquet.sealing import seal
from steptape.store.store import delete_run


def push(folder: Path, place: Place) -> None:
    """Push a store or a run."""
    outcomes: list[object] = []
    push_once(folder, ObjectTarget(place.address), outcomes.append, Backoff(print, 0.0))
    assert outcomes


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """The objects of ``there``, once they were pushed."""
    return {}


@pytest.fixture
def here(store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]) -> Path:
    """A store of four runs, one of them crashed and not sealed."""
    for number in range(4):
        steps = number + 3
        scores = [Event("evaluate", step=steps, metrics={"eval_loss": 1.0 / (number + 1)})]
        events = [*store_steps([1.0 + number / 10] * steps), *scores]
        folder = store_record(events, run_id=f"run-{number}", sealed=number < 3, steps=steps)
    return folder.parent


@pytest.fixture
def there(here: Path, bucket: Place, objects: dict[str, bytes]) -> Place:
    """The same store in object storage."""
    if not objects:
        push(here, bucket)
        objects.update({key: bucket.get(key) for key in bucket.names()})
    for key, content in objects.items():
        bucket.put(key, content)
    bucket.service.requests.clear()
    return bucket


def test_it_reads_as_the_store_here(here: Path, there: Place) -> None:
    """Lists, series, SQL, verification and backtests are equal, by the library."""
    local, remote = open_store(here), open_store(there.address)
    policy = load_policy("overfitting")
    sql = "SELECT run_id, seq, kind, loss, eval_loss FROM events ORDER BY ALL"

    assert repr(remote) == f"Store('{there.address}')"
    assert remote.runs().equals(local.runs())
    assert remote.sql(sql).equals(local.sql(sql))
    assert remote.sql(f"SELECT * FROM ({sql}) WHERE run_id = 'run-1'").num_rows == 5
    assert [run.table().equals(other.table()) for run, other in zip(remote, local, strict=True)] == [True] * 4
    assert [verify(run) for run in remote] == [verify(run) for run in local]
    assert backtest(policy, remote) == backtest(policy, local)
    assert open_run(f"{there.address}/run-2").series("loss").equals(local.run("run-2").series("loss"))


def test_parts_are_fetched_when_they_are_read(there: Place) -> None:
    """A list fetches none, a statement about one run those of that run, and nothing is fetched twice."""
    store = open_store(there.address)
    listed = store.runs().num_rows, there.service.count("GET", "/parts/")
    store.sql("SELECT loss FROM steps WHERE run_id = 'run-1'")
    named = there.service.count("GET", "/parts/"), there.service.count("GET", "/parts/run-1/")
    for _ in range(2):
        open_store(there.address).sql("SELECT loss FROM steps")

    assert listed == (4, 0)
    assert named == (1, 1)
    assert there.service.count("GET", "/parts/") == 4


def test_logs_are_fetched_ahead(there: Place) -> None:
    """Many at a time, in the background. What cannot be fetched is left to its reader."""
    folders = [run.folder for run in open_store(there.address)]
    there.service.fault = failing(1000, text="/parts/run-0/")
    with fetching_ahead(folders):
        until(lambda: len(list(folders[0].parents[2].glob("parts/*"))) == 3)
    there.service.fault = None
    asked = there.service.count("GET", "/parts/")
    rows = [open_run(folder).table().num_rows for folder in folders]

    assert rows == [4, 5, 6, 7]
    assert there.service.count("GET", "/parts/") == asked + 1


def test_only_changed_manifests_are_fetched(here: Path, there: Place, store_record: Callable[..., Path]) -> None:
    """New runs appear, deleted ones go."""
    before = [run.run_id for run in open_store(there.address)]
    store_record([Event("train_begin")], run_id="run-9", sealed=True)
    push(here / "run-9", there)
    there.client.delete_object(Bucket=there.name, Key="runs/runs/run-0.json")
    there.service.requests.clear()
    after = [run.run_id for run in open_store(there.address)]

    assert [*before[1:], "run-9"] == after
    assert there.service.count("GET", "/runs/runs/") == 1


def test_an_open_store_sees_new_runs(here: Path, there: Place, store_record: Callable[..., Path]) -> None:
    """It lists the bucket again every few seconds."""
    store = open_store(there.address)
    store_record([Event("train_begin")], run_id="run-9", sealed=True)
    push(here / "run-9", there)

    until(lambda: store.runs().num_rows == 5)


def test_a_deleted_mirror_is_made_again(there: Place) -> None:
    """Between two questions to an open store, and to an open run."""
    store = open_store(there.address)
    run = store.run("run-1")
    first = store.sql("SELECT * FROM steps ORDER BY ALL"), run.table()
    shutil.rmtree(store.path.parents[1])
    second = run.table()
    shutil.rmtree(store.path.parents[1])
    until(lambda: store.runs().num_rows == 4)

    assert second.equals(first[1])
    assert store.sql("SELECT * FROM steps ORDER BY ALL").equals(first[0])


def test_a_run_travels_by_its_address(there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with another cache fetches into its own."""
    run = open_store(there.address).run("run-1")
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "elsewhere"))
    moved = pickle.loads(pickle.dumps(run))

    assert moved.folder.is_relative_to(tmp_path / "elsewhere")
    assert moved.table().equals(run.table())


def test_an_unreachable_service_is_an_error(there: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm cache shows no old data: only a run that has ended, and that was read before, reads on."""
    run = open_store(there.address).run("run-1")
    run.table()
    there.service.fault = failing(1000)
    with pytest.raises(StoreAway, match="answers with status 503"):
        open_store(there.address)
    assert run.table().num_rows == 5
    there.service.fault = None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreAway, match="does not answer"):
        open_store(there.address)


def test_a_cut_or_false_part_never_enters_the_cache(there: Place) -> None:
    """A cut one is read again. A false one is damage, and the other runs are read."""
    store = open_store(there.address)
    there.service.fault = cutting(2, "/parts/run-1/")
    rows = store.run("run-1").table().num_rows
    there.service.fault = None
    key = next(key for key in there.names() if key.startswith("parts/run-2/"))
    there.put(key, there.get(key)[:-1] + b"x")
    cached = {path.name for path in (store.path.parents[1] / "parts").iterdir()}
    with pytest.raises(DamagedLog, match="not the one that the manifest names"):
        store.run("run-2").table()
    there.client.delete_object(Bucket=there.name, Key=f"runs/{key}")
    with pytest.raises(DamagedLog, match="lacks a part"):
        store.run("run-2").table()

    assert rows == 5
    assert {path.name for path in (store.path.parents[1] / "parts").iterdir()} == cached
    assert store.run("run-0").table().num_rows == 4


def stale(there: Place) -> Fault:
    """Return a fault that answers with the listing of this moment."""
    listing: list[Answer] = []

    def fault(_: str, path: str, moto: Callable[[], Answer]) -> Answer | None:
        if "list-type=2" not in path:
            return None
        listing[:] = listing or [moto()]
        return listing[0]

    there.service.fault = fault
    open_store(there.address)
    return fault


def test_a_stale_listing_only_delays(here: Path, there: Place, store_record: Callable[..., Path]) -> None:
    """A new run appears later, a deleted one is left out, and nothing is doubled."""
    stale(there)
    store_record([Event("train_begin")], run_id="run-9", sealed=True)
    push(here / "run-9", there)
    there.client.delete_object(Bucket=there.name, Key="runs/runs/run-0.json")
    shutil.rmtree(mirror_for(there.address).folder)
    old = [run.run_id for run in open_store(there.address)]
    there.service.fault = None

    assert old == ["run-1", "run-2", "run-3"]
    assert [run.run_id for run in open_store(there.address)] == ["run-1", "run-2", "run-3", "run-9"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (None, "manifest cannot be read"),
        ({"format": 2}, "supports manifest format 1; got 2"),
        ({"run_id": "run-2"}, "belongs to another run"),
        ({"parts": [{"name": "../../x", "sha256": "0" * 64, "size_bytes": 1}]}, "is not the name of a part"),
        ({"parts": [{"name": "journal-0-0-000000000000", "sha256": "/etc", "size_bytes": 1}]}, "digest of"),
        ({"parts": [{"name": "journal-0-0-000000000000", "sha256": "0" * 64, "size_bytes": -1}]}, "not a number"),
        ({"live": 7}, "manifest cannot be read"),
        ({"files": {"run.json": ["x"]}}, "not a text"),
        ({"files": {"run.json": "{"}}, "run.json cannot be read"),
    ],
)
def test_a_damaged_manifest_is_a_problem_of_its_run(there: Place, change: dict[str, object] | None, what: str) -> None:
    """The other runs are listed and read, and nothing is written outside of the run's folder."""
    document = json.loads(there.get("runs/run-1.json"))
    there.put("runs/run-1.json", b"{" if change is None else json.dumps(document | change).encode())
    store = open_store(there.address)
    entries, problems = store.entries()

    assert [entry.name for entry in entries] == ["run-0", "run-2", "run-3"]
    assert [what in str(problem) for problem in problems] == [True]


def test_foreign_objects_are_ignored(there: Place) -> None:
    """Objects that are no manifests, and files that a manifest names beyond the known ones."""
    document = json.loads(there.get("runs/run-1.json"))
    document["files"] |= {"../evil": "x", ".hidden": "x"}
    there.put("runs/run-1.json", json.dumps(document).encode())
    for key in ("runs/x.txt", "runs/a/b.json", "runs/.json", "runs/..json"):
        there.put(key, b"{}")
    store = open_store(there.address)

    assert store.entries()[1] == []
    assert len(list(store)) == 4
    assert not (store.path / "evil").exists()
    assert not (store.path / "run-1" / ".hidden").exists()


def test_a_bucket_that_cannot_be_read_is_said(bucket: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, refuses access, or there are no credentials."""
    with pytest.raises(StoreNotFound, match="there is no such bucket"):
        open_store("s3://nowhere-at-all/runs")
    bucket.service.fault = failing(1000, status="403 Forbidden")
    with pytest.raises(StoreNotFound, match="refuses access"):
        open_store(bucket.address)
    bucket.service.fault = None
    from steptape.store.objects import bucket as module

    module._client.cache_clear()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(StoreNotFound, match="no credentials"):
        open_store(bucket.address)
    module._client.cache_clear()


def test_nothing_is_written_to_it(there: Place) -> None:
    """Notes, deletions and seals are refused; the bucket and its mirror stay as they are."""
    keys = there.names()
    folder = open_store(there.address).run("run-1").folder
    for write in (
        lambda: append_annotation(folder, Annotation("1", 1, "x")),
        lambda: delete_run(folder),
        lambda: seal(folder),
    ):
        with pytest.raises(ReadOnlyStore, match="only read"):
            write()

    assert there.names() == keys
    assert open_run(folder).table().num_rows == 5


def test_a_server_of_it_renames_no_run(there: Place) -> None:
    """It says where a run can be changed."""
    with served(there.address) as client:
        answer = client.patch("/api/v1/runs/run-1", json={"name": "best"})

    assert answer.json()["detail"] == "run-1: a store in object storage is only read"


def test_a_folder_that_claims_to_be_a_mirror_is_none(here: Path) -> None:
    """Where it lies decides. So nobody's store makes this machine connect anywhere."""
    (here / ".mirror.json").write_text('{"format": 1, "address": "s3://evil/x", "endpoint": "http://127.0.0.1:9"}')

    assert len(list(open_store(here))) == 4


def test_the_cache_has_a_limit(there: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that were read longest ago go first, and come again when they are read."""
    monkeypatch.setenv(mirrors.LIMIT_VARIABLE, "0.00001")
    monkeypatch.setattr(mirrors, "_KEPT_S", -10.0)
    folder = mirror_for(there.address).folder
    mirror = Mirror(folder, there.address, there.service.endpoint)
    mirror.refresh(at_once=True)
    paths = [path for path in sorted(folder.glob("run-*/*-0-0-*")) if path.is_symlink()]
    for path in paths:
        mirror.fetch([path])
    held = [path.exists() for path in paths]

    assert held[-1]
    assert not held[0]


def test_a_limit_that_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable."""
    monkeypatch.setenv(mirrors.LIMIT_VARIABLE, "much")
    with pytest.raises(TelemetryError, match="STEPTAPE_CACHE_GB must be a number of gigabytes"):
        mirrors.PartsCache(Path("x"))

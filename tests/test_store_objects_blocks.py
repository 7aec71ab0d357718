"""Readers of a few columns fetch blocks of large parts in object storage, and check each."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call
from object_storage import Answer, Fault, Place, cutting, failing
from pyarrow import parquet

from steptape import Recorder, open_store
from steptape.store.errors import DamagedLog, StoreAway
from steptape.store.objects.manifest import BLOCK_BYTES, PartInBlocks, manifest_of

STEPS = 7_000
POLICY = """
params: {limit: 2.0}
controllers:
  - {name: stop, triggers: [on_step_end], rule: m7 > limit, operations: [hfcontrols.should_training_stop]}
"""
METRICS = [f"m{number}" for number in range(400)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one run, whose events file has 400 columns of random numbers and about 20 MB."""
    folder, draw = tmp_path_factory.mktemp("blocks"), random.Random(7)
    with Recorder(folder, run_id="wide", quiet=True) as rec:
        for _ in range(STEPS):
            rec.step(dict(zip(METRICS, (draw.random() for _ in METRICS), strict=True)))
    rec.close(seal=True)
    return folder


@pytest.fixture
def there(store: Path, bucket: Place) -> Place:
    """The same store in object storage."""
    assert call("push", store, bucket.address).returncode == 0
    return bucket


def weighing(sizes: list[int]) -> Fault:
    """Return a fault that only notes the sizes of the parts that are sent."""

    def fault(method: str, path: str, moto: Callable[[], Answer]) -> Answer | None:
        if method != "GET" or "/parts/" not in path:
            return None
        answer = moto()
        sizes.append(len(answer.body))
        return answer

    return fault


def test_one_column_moves_a_few_blocks(store: Path, there: Place) -> None:
    """A second reader moves none. Reading all columns moves the part once, whole."""
    sizes: list[int] = []
    there.service.fault = weighing(sizes)
    run, here = open_store(there.address).run("wide"), open_store(store).run("wide")
    (part,) = here.folder.glob("events-*")
    one, first = run.series("m7"), sum(sizes)
    again, second = open_store(there.address).run("wide").series("m7"), sum(sizes)
    whole = run.table()

    assert one.equals(here.series("m7"))
    assert again.equals(one)
    assert whole.equals(here.table())
    assert 0 < first == second < part.stat().st_size / 20
    assert sum(sizes) == first + part.stat().st_size


def test_a_part_in_blocks_is_read_like_any_file(tmp_path: Path) -> None:
    """Wherever a read begins and ends; beyond the last of few blocks the whole part is fetched."""
    content = random.Random(0).randbytes(3 * BLOCK_BYTES + 7)
    pieces = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    fetched: list[Path] = []

    def fetch(path: Path) -> None:
        fetched.append(path)
        path.write_bytes(content)

    names = [f"name.{len(piece)}" for piece in pieces]
    part = PartInBlocks(tmp_path / "part", names, lambda blocks: b"".join(pieces[block] for block in blocks), fetch)
    same = io.BytesIO(content)
    for offset, whence, size in [(5, 0, 9), (-3, 1, BLOCK_BYTES), (0, 2, 4), (-9, 2, 99)]:
        assert part.seek(offset, whence) == same.seek(offset, whence)
        assert part.read(size) == same.read(size)
        assert part.tell() == same.tell()
    assert fetched == [tmp_path / "part"]
    assert (part.seek(1), part.read()) == (1, content[1:])


def test_a_sweep_moves_the_blocks_of_its_metrics(store: Path, there: Place, tmp_path: Path) -> None:
    """It prints what it prints here."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    sizes: list[int] = []
    there.service.fault = weighing(sizes)
    sweep = ["sweep", tmp_path / "policy.yaml", "--set", "limit=0.99,0.999", "--json", "--store"]
    remote, local = (call(*sweep, place).stdout.splitlines()[:2] for place in (there.address, store))

    assert remote == local
    assert [json.loads(line)["stopped"] for line in local] == [1, 1]
    assert 0 < sum(sizes) < 1_000_000


def test_a_cut_block_is_read_again(store: Path, there: Place) -> None:
    """So is one that the service refused for the moment. A service that stays away is an error."""
    run, here = open_store(there.address).run("wide"), open_store(store).run("wide")
    there.service.fault = cutting(2, "/parts/")
    cut = run.series("m7")
    there.service.fault = failing(2, text="/parts/")
    refused = run.series("m200")
    there.service.fault = failing(1000, text="/parts/")

    assert cut.equals(here.series("m7"))
    assert refused.equals(here.series("m200"))
    with pytest.raises(StoreAway, match="status 503"):
        run.series("m390")


@pytest.mark.parametrize("is_footer", [False, True])
def test_a_false_block_is_damage(store: Path, there: Place, *, is_footer: bool) -> None:
    """It never enters the cache. Columns that other blocks hold are read."""
    (path,) = (store / "wide").glob("events-*")
    columns = parquet.read_metadata(path).row_group(0)
    place = next(columns.column(i).data_page_offset for i in range(500) if columns.column(i).path_in_schema == "m200")
    (key,) = (key for key in there.names() if "events-" in key)
    content = bytearray(there.get(key))
    content[-9 if is_footer else place + 999] ^= 1
    there.put(key, bytes(content))
    run = open_store(there.address).run("wide")

    if not is_footer:
        assert run.series("m0").num_rows == STEPS
    with pytest.raises(DamagedLog, match="not the one that the manifest names"):
        run.series("m200")
    cached = [path for path in run.folder.parents[2].glob("parts/*") if not path.name.startswith(".")]
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name.partition(".")[0] for path in cached)


def test_blocks_that_do_not_fit_are_damage(there: Place) -> None:
    """Too few digests, or something else in their place."""
    manifest = json.loads(there.get("runs/wide.json"))
    (digests,) = manifest["blocks"].values()
    for false in (digests[:-1], ["x"] * len(digests), 1):
        changed = manifest | {"blocks": dict.fromkeys(manifest["blocks"], false)}
        with pytest.raises(DamagedLog, match="manifest cannot be read"):
            manifest_of(json.dumps(changed).encode(), "wide")

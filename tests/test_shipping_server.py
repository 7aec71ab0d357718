"""A run pushed to a server: by its token alone, live on the page, sealed at its end, whatever happens on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from shipped_runs import RUN, Loop, digests_of
from test_shipping_push import PAPERS, a_chunk
from waiting import PATIENCE_S

from api_serving import SMALL, served
from steptape import Recorder, open_run
from steptape.api.limits import Limits
from steptape.api.middleware.gate import parse_tokens
from steptape.shipping.intake import IntakeLimits
from steptape.shipping.push_protocol import PushProgress, PushRefused, RunPapers, TargetAway
from steptape.shipping.run_push import RunPush
from steptape.shipping.store_push import target_of
from steptape.shipping.targets import HttpTarget

TOKENS = parse_tokens(
    "record-token-0123456789 record cluster\nrecord-token-9876543210 record other\n"
    "read-token-0123456789ab read reader\nwrite-token-0123456789a write writer\nadmin-token-0123456789a admin boss\n",
    source="test",
)
RECORD = "record-token-0123456789"


@contextmanager
def a_server(store: Path, *, limits: Limits = SMALL, tokens: bool = True) -> Iterator[str]:
    """Serve a store, and return the address."""
    store.mkdir(exist_ok=True)
    with served(store, limits=limits, tokens=TOKENS if tokens else None) as client:
        yield str(client.base_url)


@pytest.fixture
def target() -> Iterator[Callable[..., HttpTarget]]:
    """Make targets, and close their connections after the test."""
    made: list[HttpTarget] = []

    def make(address: object, token: str = "") -> HttpTarget:
        made.append(HttpTarget(str(address), token, timeout_s=PATIENCE_S))
        return made[-1]

    yield make
    for each in made:
        each.close()


Targets = Callable[..., HttpTarget]


def looked(push: RunPush) -> PushProgress:
    """Look until the run is done."""
    deadline = time.monotonic() + PATIENCE_S
    while not (progress := push.look()).is_done:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return progress


def test_a_run_is_on_the_server_while_it_trains_and_sealed_at_its_end(target: Targets, tmp_path: Path) -> None:
    """The API shows each step as it comes; in the end both logs are equal."""
    with a_server(tmp_path / "b") as address, Recorder(tmp_path / "a", quiet=True) as rec:
        push = RunPush(rec.folder, target(address, RECORD))
        headers = {"Authorization": "Bearer read-token-0123456789ab"}
        seen = []
        for step in range(3):
            rec.step(loss=step)
            push.look()
            push.look()
            run = httpx.get(f"{address}/api/v1/runs/{rec.run_id}", headers=headers).raise_for_status().json()
            seen.append((run["status"], run["steps"]))
        rec.close()
        looked(push)
        status = httpx.get(f"{address}/api/v1/runs/{rec.run_id}", headers=headers).json()["status"]

    assert seen == [("running", 1), ("running", 2), ("running", 3)]
    assert status == "completed"
    assert open_run(tmp_path / "b" / rec.run_id).log_digest == open_run(rec.folder).log_digest != ""


@pytest.mark.parametrize("token", ["", "wrong", "read-token-0123456789ab", "write-token-0123456789a"])
def test_only_a_token_of_scope_record_pushes(target: Targets, token: str, tmp_path: Path) -> None:
    """Neither may another token ask what is there."""
    with a_server(tmp_path / "b") as address, pytest.raises(PushRefused, match=r"scope record|a token that"):
        target(address, token).state(RUN)


def test_a_token_of_scope_record_reads_nothing(tmp_path: Path) -> None:
    """Pages, runs and queries are closed to it."""
    with served(tmp_path, tokens=TOKENS, token=RECORD) as client:
        answers = [client.get("/api/v1/runs"), client.get("/"), client.post("/api/v1/query", json={"sql": "SELECT 1"})]

    assert [answer.status_code for answer in answers] == [403] * 3


def test_a_run_of_another_token_is_closed(target: Targets, tmp_path: Path) -> None:
    """The second token is told so, and nothing changes."""
    with a_server(tmp_path / "b") as address:
        target(address, RECORD).put_papers(RUN, PAPERS)
        other = target(address, "record-token-9876543210")
        for ask in (lambda: other.state(RUN), lambda: other.put_chunk(RUN, a_chunk(0, 1))):
            with pytest.raises(PushRefused, match="begun with another token"):
                ask()


OTHER_RUN = PAPERS.run.replace(RUN, "x")


def _post(client: httpx.Client, chunk: bytes, run_id: str = RUN) -> httpx.Response:
    return client.post(
        f"/api/v1/intake/{run_id}/frames", content=chunk, headers={"Content-Type": "application/octet-stream"}
    )


@pytest.mark.parametrize(
    ("send", "status", "code"),
    [
        (lambda c: _post(c, b"x" * 50), 422, "bad-frames"),
        (lambda c: _post(c, b""), 422, "bad-frames"),
        (lambda c: _post(c, bytes(70_000)), 413, "body-too-large"),
        (lambda c: c.post(f"/api/v1/intake/{RUN}/frames", json={}), 415, "unsupported-media-type"),
        (lambda c: _post(c, a_chunk(0, 1)), 409, "out-of-step"),
        (lambda c: _post(c, a_chunk(0, 0), "..%2Fx"), 415, "unsupported-media-type"),
        (lambda c: _post(c, a_chunk(0, 0), ".x"), 422, "bad-frames"),
        (lambda c: c.put(f"/api/v1/intake/{RUN}/papers", json={"run": "{"}), 422, "bad-frames"),
        (lambda c: c.put(f"/api/v1/intake/{RUN}/papers", json={"run": OTHER_RUN}), 422, "bad-frames"),
        (lambda c: c.put(f"/api/v1/intake/{RUN}/papers", json={"more": 1}), 422, "invalid-parameter"),
        (lambda c: c.post(f"/api/v1/intake/{RUN}/end", json={"streams": []}), 409, "out-of-step"),
    ],
)
def test_what_is_no_part_of_a_run_is_refused(
    send: Callable[[httpx.Client], httpx.Response], status: int, code: str, tmp_path: Path
) -> None:
    """The problem names the reason, and no run appears."""
    limits = replace(SMALL, intake=IntakeLimits(chunk_bytes=65_536))
    with served(tmp_path, tokens=TOKENS, token=RECORD, limits=limits) as client:
        answer = send(client)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not list(tmp_path.glob("*/run.json"))


def test_a_server_that_is_killed_and_begins_anew_gets_the_rest(target: Targets, tmp_path: Path) -> None:
    """The pusher asks where to go on; nothing is lost or doubled."""
    loop = Loop(tmp_path / "a")
    push: RunPush | None = None
    for _ in range(3):
        with a_server(tmp_path / "b", tokens=False) as address:
            push = RunPush(loop.folder, target(address))
            loop.steps(50)
            push.look()
            push.look()
        loop.steps(1)
        with pytest.raises(TargetAway, match="does not answer"):
            looked(push)
    loop.end()
    with a_server(tmp_path / "b", tokens=False) as address:
        looked(RunPush(loop.folder, target(address)))

    assert digests_of(loop.folder) == digests_of(tmp_path / "b" / RUN)
    assert open_run(tmp_path / "b" / RUN).digest_faults() == []


def test_a_request_for_a_pushed_run_goes_to_the_machine_that_trains(target: Targets, tmp_path: Path) -> None:
    """The server cannot reach its recorder, and says so."""
    with served(tmp_path) as client:
        place = target(client.base_url)
        place.put_papers(RUN, PAPERS)
        place.put_chunk(RUN, a_chunk(0, 3))
        answer = client.post(f"/api/v1/runs/{RUN}/requests", json={"request": "stop"})

    assert answer.status_code == 409
    assert "the machine that trains" in answer.json()["detail"]


def test_an_address_that_is_no_server_is_refused(target: Targets, tmp_path: Path) -> None:
    """Passwords belong in no address, and a server of another kind is named."""
    for address in ("http://user:secret@host", "http://", "http://host:99999", "ftp://x"):
        with pytest.raises(Exception, match="address"):
            target_of(address)
    with pytest.raises(TargetAway, match="does not answer"):
        target("http://127.0.0.1:9").state(RUN)
    with served(tmp_path) as client, pytest.raises(PushRefused, match="steptape"):
        target(f"{client.base_url}/nowhere").state(RUN)


def test_papers_with_a_huge_config_arrive(target: Targets, tmp_path: Path) -> None:
    """They may be as large as a chunk."""
    document = json.loads(PAPERS.run) | {"config": {"text": "x" * (3 << 20)}}
    with served(tmp_path) as client:
        target(client.base_url).put_papers(RUN, RunPapers(json.dumps(document)))

    assert len(str(open_run(tmp_path / RUN).info.config["text"])) == 3 << 20

"""The API reports content that no recorder writes as damage, with its place, in any of its processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api_serving import RUN, begin, recorded, served


@pytest.mark.parametrize("query", ["", "?top=1", "/spike?step=3"])
def test_damaged_samples_are_a_problem_of_the_server(tmp_path: Path, query: str) -> None:
    """The status is 500: the request is not at fault."""
    (samples,) = recorded(tmp_path / "runs").glob("samples-*.parquet")
    content = samples.read_bytes()
    samples.write_bytes(content[:4] + bytes(len(content) - 12) + content[-8:])
    with served(tmp_path / "runs") as client:
        problem = client.get(f"/api/v1/runs/{RUN}/samples{query}").json()

    assert (problem["status"], problem["code"]) == (500, "damaged-log")
    assert str(tmp_path) not in json.dumps(problem)


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("decision", {"operations": "stop"}),
        ("decision", {"controller": 5}),
        ("decision", {"values": [1]}),
        ("rule_error", {"error": {}}),
    ],
)
def test_a_decision_that_no_rule_engine_has_written_is_a_damage(
    tmp_path: Path, kind: str, attrs: dict[str, object]
) -> None:
    """The answer names the place and the wrong field."""
    writer = begin(tmp_path)
    writer.append(kind, (), (), step=1, time_ns=1, elapsed_ns=1, attrs=json.dumps(attrs).encode())
    writer.close()
    with served(tmp_path) as client:
        problem = client.get(f"/api/v1/runs/{RUN}/decisions").json()

    assert (problem["status"], problem["code"]) == (500, "damaged-log")
    assert problem["detail"].startswith(f"{kind} 0/0/0, {next(iter(attrs))}: ")

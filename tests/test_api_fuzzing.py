"""The server conforms to its OpenAPI document under schemathesis; ``make fuzz-api`` sends 5,000 requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from drawing import scaled, seed

from api_serving import RUN, SMALL, recorded, served
from fuzz.fuzz_api import CONFIG, fuzz


def test_no_answer_departs_from_the_document(tmp_path: Path) -> None:
    """No 5xx, undocumented status or undocumented schema occurs; links from lists to their items are followed."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    recorded(tmp_path / "runs")
    recorded(tmp_path / "runs", f"{RUN[:-1]}b", name="named")

    with served(tmp_path / "runs", limits=replace(SMALL, wait_s=0.2)) as client:
        url = str(client.base_url).rstrip("/")
        status, count, said = fuzz(url, max_examples=scaled(12), seed=seed(), config=config, phases="fuzzing,stateful")

    assert status == 0, said
    assert count > 100

"""Fuzzes a real server with schemathesis: ``python tests/fuzz/fuzz_api.py [CASES]`` stops after CASES requests.

It derives valid and invalid requests from the OpenAPI document and follows links from job to result. It reports every
5xx, every answer that the document does not describe, and every undocumented status.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from api_serving import RUN, SMALL, recorded, served

#: The checks on each answer.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


ALL_PHASES = "examples,coverage,fuzzing,stateful"

#: The names that exist: without them, most requests would name runs that do not exist.
CONFIG = f"""
[parameters]
"path.id" = ["{RUN}", "named", "nobody"]
"path.name" = ["loss_spike", "nothing"]
"query.metric" = ["loss", "batch_size", "nothing"]
"query.run" = ["{RUN}", "named"]
"query.step" = [1, 7, 1000]
"""


def fuzz(
    url: str, *, max_examples: int, seed: int, config: Path | None = None, phases: str = ALL_PHASES
) -> tuple[int, int, str]:
    """Run schemathesis; return its exit status, the number of requests, and its output."""
    configured = () if config is None else ("--config-file", str(config))
    command = [
        str(Path(sys.executable).with_name("schemathesis")), *configured,
        "run", f"{url}/api/v1/openapi.json", "--url", url,
        "--checks", ",".join(CHECKS), "--max-examples", str(max_examples), "--seed", str(seed), "--no-color",
        "--request-timeout", "60", "--wait-for-schema", "60", "--generation-database", "none",
        "--phases", phases,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    found = re.search(r"Test cases:\s*\n\s*(\d+) generated", result.stdout)
    return result.returncode, int(found[1]) if found else 0, result.stdout + result.stderr


def main() -> None:
    """Fuzz with successive seeds until the wanted number of requests is reached."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    total, seed = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(CONFIG)
        recorded(Path(folder) / "runs")
        recorded(Path(folder) / "runs", f"{RUN[:-1]}b", name="named")
        with served(Path(folder) / "runs", limits=replace(SMALL, wait_s=0.2)) as client:
            while total < wanted:
                # Every other time schemathesis must discover the names by itself.
                known = config if seed % 2 else None
                status, count, said = fuzz(str(client.base_url).rstrip("/"), max_examples=60, seed=seed, config=known)
                print(said, flush=True)
                if status != 0 or not count:
                    sys.exit(status or 1)
                total += count
                seed += 1
    print(f"{total} requests, and nothing to complain of")


if __name__ == "__main__":
    main()

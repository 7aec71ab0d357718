"""Secrets never reach the disk: in configurations, command lines, messages and tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steptape.store.redaction import redacted, redacted_text

#: A secret in each form in which programs and their messages hold one. None is a real key.
OPENAI, HUGGING_FACE = "sk-proj-" + "aB3" * 8, "hf_" + "aB3" * 11
GITHUB, SLACK, AWS = "ghp_" + "aB3" * 12, "xoxb-1234567890-abcdef", "AKIA" + "ABCD1234" * 2
SECRETS = {
    "AWS_SECRET_ACCESS_KEY=hunter2": "AWS_SECRET_ACCESS_KEY=[redacted]",
    "+logger.api_key=hunter2": "+logger.api_key=[redacted]",
    "--hub-token=hunter2": "--hub-token=[redacted]",
    "train.py --hub-token hunter2 --lr 0.1": "train.py --hub-token [redacted] --lr 0.1",
    'os.environ["WANDB_API_KEY"] = "hunter2"': 'os.environ["WANDB_API_KEY"] = "[redacted]"',
    "{'password': 'hunter2', 'user': 'me'}": "{'password': '[redacted]', 'user': 'me'}",
    "postgres://me:hunter2@host/db is down": "postgres://me:[redacted]@host/db is down",
    "GET /?access_token=hunter2&page=1": "GET /?access_token=[redacted]&page=1",
    "Authorization: Bearer hunter2hunter2": "Authorization: Bearer [redacted]",
    f"Incorrect API key provided: {OPENAI}.": "Incorrect API key provided: [redacted].",
    f"login with {HUGGING_FACE}": "login with [redacted]",
    f"remote said: {GITHUB}": "remote said: [redacted]",
    f"slack {SLACK}": "slack [redacted]",
    f"signed by {AWS}": "signed by [redacted]",
    "https://hooks.slack.com/services/T0/B0/abc": "https://hooks.slack.com/services/[redacted]",
    "https://discord.com/api/webhooks/1/abc failed": "https://discord.com/api/webhooks/[redacted] failed",
    "STEPTAPE_NOTIFY=json://host/hunter2": "STEPTAPE_NOTIFY=[redacted]",
    'Recorder("runs", notify="ntfy://hunter2")': 'Recorder("runs", notify="[redacted]")',
    "slack://T1/B2/hunter2 discord://1/hunter2 tgram://hunter2/3": (
        "slack://[redacted] discord://[redacted] tgram://[redacted]"
    ),
}

#: What looks like a secret and is none.
PLAIN = (
    "pad_token=<pad> eos_token=</s>",
    "max_tokens=5 token=None use_auth_token=False",
    "unexpected token: '}' at line 3",
    "--tokenizer gpt2 --max-tokens 5 --token-budget 100",
    "sk-learn-random-forest-baseline hf_transformers_backend",
    "ssh://git@host:22/x a:b@c",
    "token = read_token(path)",
    "commit 4f2c1e8d9b7a6c5e4d3f2a1b0c9d8e7f6a5b4c3d",
)


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_in_a_text_is_redacted(text: str) -> None:
    """Names, prefixes and addresses reveal it."""
    assert redacted_text(text) == SECRETS[text]


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_without_a_secret_stays(text: str) -> None:
    """Vocabulary tokens, numbers and calls are no secrets."""
    assert redacted_text(text) == text


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_in_a_configuration_is_redacted_at_any_depth(text: str) -> None:
    """Mappings and lists may be nested."""
    assert redacted({"a": [{"b": text}, text]}) == {"a": [{"b": SECRETS[text]}, SECRETS[text]]}


def test_a_list_is_read_as_a_command_line() -> None:
    """The text after an option belongs to the option, as in ``sys.argv``."""
    arguments = ["train.py", "--token", "hunter2", "--lr", "0.1", "--api-key", "--verbose", 3]

    assert redacted({"args": arguments}) == {
        "args": ["train.py", "--token", "[redacted]", "--lr", "0.1", "--api-key", "--verbose", 3]
    }


def test_no_secret_of_a_failed_program_reaches_the_disk(tmp_path: Path) -> None:
    """Secrets come in by the command line, the configuration, the message, its traceback, and the reason of an end."""
    program = f"""
import sys
from steptape import Recorder
config = {{"args": ["--token", "hunter2"], "notes": "PASSWORD=hunter2", "hook": "Bearer hunter2hunter2"}}
with Recorder(sys.argv[1], run_id="stopped", config=config) as rec:
    rec.close(status="stopped", reason="the key {OPENAI} has expired, see https://me:hunter2@host")
def connect(url, password):
    raise OSError(f"{{url}} refuses DB_PASSWORD={{password}}")
with Recorder(sys.argv[1], run_id="failed", config=config) as rec:
    try:
        connect("https://me:hunter2@host", password="hunter2")
    except OSError as error:
        raise RuntimeError(f"no data by {HUGGING_FACE}") from error
"""
    path, store = tmp_path / "train.py", tmp_path / "runs"
    path.write_text(program)
    line = [sys.executable, str(path), str(store), "AWS_SECRET_ACCESS_KEY=hunter2", "--hub-token", "hunter2", OPENAI]
    subprocess.run(line, capture_output=True, check=False)

    files = [file for file in store.rglob("*") if file.is_file()]
    assert {run.parent.name for run in files if run.name == "run.json"} == {"stopped", "failed"}
    held = [
        file for file in files for secret in ("hunter2", OPENAI, HUGGING_FACE) if secret.encode() in file.read_bytes()
    ]
    assert held == []
    failure = json.loads((store / "failed" / "run.json").read_text())["attempts"][0]["failure"]
    assert failure["message"] == "no data by [redacted]"

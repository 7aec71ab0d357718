"""The README is true: its Python runs, its commands exist, and so do the tests that it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_of_the_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """It runs in an empty folder, pasted as a whole."""
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks("python"))], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "loss_spike" in result.stdout


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """They run on the store that its Python leaves; the server is replaced by its help."""
    subprocess.run([sys.executable, "-c", "\n".join(blocks("python"))], cwd=tmp_path, check=True, capture_output=True)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("steptape ")]

    for command in commands:
        line = re.sub(r"serve runs.*", "serve --help", command).replace(
            "steptape ", f"{sys.executable} -m steptape ", 1
        )
        result = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{command}: {result.stderr}"
    assert len(commands) >= 5


def test_make_has_the_targets_that_the_readme_names() -> None:
    """``make help`` lists them."""
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    named = set(re.findall(r"make (\w+)", README)) & {"demo", "test", "lint", "help", "format"}
    assert all(f"make {target}" in printed for target in named)


def test_every_guarantee_names_a_test_that_exists() -> None:
    """Each file and function is looked up."""
    table = README.split("## Guarantees")[1].split("**Not promised.**")[0]
    missing = []
    for row in table.splitlines():
        file = None
        for name in re.findall(r"`([^`]+)`", row.rsplit("|", 2)[-2]) if row.count("|") > 2 else []:
            path, _, function = name.partition("::")
            file = path or file
            text = (
                (ROOT / "tests" / str(file)).read_text(encoding="utf-8")
                if file and (ROOT / "tests" / file).exists()
                else ""
            )
            if not text or (function and f"def {function}(" not in text):
                missing.append(name)

    assert missing == []
    assert table.count("`test_") >= 10

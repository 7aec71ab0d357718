"""The README is short and names targets that exist; the guarantees name tests that exist.

``test_documents.py`` runs the README's code and compares its output.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUARANTEES = (ROOT / "docs" / "GUARANTEES.md").read_text(encoding="utf-8")


def test_the_readme_has_400_to_600_words() -> None:
    """Code and links count: a newcomer reads them, too."""
    assert 400 <= len(README.split()) <= 600


def test_make_has_the_targets_that_the_readme_names() -> None:
    """``make help`` lists them."""
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    named = set(re.findall(r"make (\w+)", README)) & {"demo", "test", "lint", "help", "format"}
    assert all(f"make {target}" in printed for target in named)


def test_every_guarantee_names_a_test_that_exists() -> None:
    """Each file and function is looked up."""
    missing = []
    for row in GUARANTEES.splitlines():
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
    assert GUARANTEES.count("`test_") >= 30

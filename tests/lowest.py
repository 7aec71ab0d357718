"""Prints the lowest versions of steptape's dependencies that pyproject.toml allows, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def lowest(requirement: str) -> str:
    """Return the requirement with its minimum as the only version: ``a>=1.2; marker`` becomes ``a==1.2; marker``.

    Raises:
        ValueError: It has no minimum.
    """
    pinned, count = re.subn(r">=(?=[0-9])", "==", requirement, count=1)
    if not count:
        raise ValueError(f"{requirement}: has no minimum version")
    return pinned


if __name__ == "__main__":
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*map(lowest, project["dependencies"]), sep="\n")

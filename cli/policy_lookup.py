"""Resolves the rule files that command lines name, and the settings of their params."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import typer

from ..rules.policy_file.policy import Policy, load_policy, policy_path, require_file
from ..rules.policy_file.sentences import is_sentence
from ..store.errors import TelemetryError


def policy_named(name: str, settings: Iterable[str] | None) -> Policy:
    """Load the rule file of this name, or rules as sentences, with some params replaced by ``PARAM=VALUE`` settings."""
    return load_policy(rules_named(name), params=params_of(settings))


def rules_named(name: str) -> str | Path:
    """Return rules as sentences as they are, and the path of a file or of a shipped rule file otherwise."""
    return name if is_sentence(name) else openable(policy_path(name))


def openable(path: Path) -> Path:
    """Return the path of a rule file, or of a pipe that carries one, if it can be opened.

    Raises:
        TelemetryError: It cannot be opened. For a missing file the error suggests shipped rule files.
    """
    if not os.access(require_file(path), os.R_OK):
        raise TelemetryError("cannot be read (permission denied)", where=str(path))
    return path


def params_of(settings: Iterable[str] | None) -> dict[str, float | int | bool | str]:
    """Parse ``PARAM=VALUE`` settings into params by name."""
    return dict(_setting(setting) for setting in settings or ())


def _setting(setting: str) -> tuple[str, float | int | bool | str]:
    name, equals, text = setting.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--set takes PARAM=VALUE; got {setting!r}")
    return name, setting_value(text)


def setting_value(text: str) -> float | int | bool | str:
    """Parse the value of a param as written on a command line."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text

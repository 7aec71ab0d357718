"""The shipped rule files, each loaded at its first use: to load one takes up to half a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from steptape.rules.policy_file.policy import Policy, load_policy, parse_policy, shipped_policies


@cache
def shipped(name: str) -> Policy:
    """Return a shipped rule file."""
    return load_policy(name)


class RuleFiles(Mapping[str, Policy]):
    """The shipped rule files by name, and others that are given as text."""

    def __init__(self, **texts: str) -> None:
        self._texts = texts
        self._loaded: dict[str, Policy] = {}

    def __getitem__(self, name: str) -> Policy:
        if name not in self._loaded:
            self._loaded[name] = parse_policy(self._texts[name]) if name in self._texts else shipped(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._texts, *sorted(shipped_policies())])

    def __len__(self) -> int:
        return len(list(iter(self)))

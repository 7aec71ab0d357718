"""Counts how often people choose a rule on the same runs: a promise holds for one choice that is made before looking.

Takes a question and the digests of the runs that it is asked of. The count is in ``tries.jsonl`` in the user's cache
folder, so that reading a store never writes into it. A line is a question and its runs; these are written once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any, Final

from ..store.user_cache import cache_folder
from .streams import complain

#: The file in the user's cache folder.
TRIES: Final = "tries.jsonl"

#: Hexadecimal digits of a digest that a line keeps.
_DIGITS: Final = 16


def counted_try(question: Any, runs: Collection[str]) -> int | None:
    """Count a question to runs, unless it was asked of them before. Return how many were asked of any of these runs.

    None if it cannot be counted, which is printed on stderr.

    Args:
        question: What was asked, as JSON.
        runs: The digests of the logs.
    """
    own = {digest.rpartition(":")[2][:_DIGITS] for digest in runs}
    asked, history = _digest(question), _digest(sorted(own))
    cache = cache_folder()
    if cache is None:
        complain("note: this try is not counted: there is no cache folder. Name one in STEPTAPE_CACHE")
        return None
    path, runs_of, is_known, found = cache / TRIES, dict[str, set[str]](), False, {asked}
    try:
        content = path.read_bytes() if path.exists() else b""
        for earlier in _lines(content):
            of = runs_of.setdefault(earlier["history"], {*earlier.get("runs", ())})
            if own & of:
                found.add(earlier["question"])
            is_known = is_known or (earlier["question"], earlier["history"]) == (asked, history)
        if not is_known:
            told = {"question": asked, "history": history} | ({} if history in runs_of else {"runs": sorted(own)})
            cache.mkdir(parents=True, exist_ok=True)
            with open(path, "ab", buffering=0) as file:
                file.write(b"\n" * (content[-1:] not in (b"", b"\n")) + json.dumps(told).encode() + b"\n")
    except OSError as error:
        fix = "Make it writable, or name another folder in STEPTAPE_CACHE"
        complain(f"note: this try is not counted: {path}: {error.strerror}. {fix}")
        return None
    return len(found)


def _lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines; one that a crash cut off is none."""
    for line in content.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and {"question", "history"} <= found.keys():
            yield found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]

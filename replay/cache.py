"""Caches per-run results in the user's cache folder. An entry is valid while run, question and code are unchanged.

The key covers everything that a result depends on: the question, the files of the run's log and the code that computes
the result. The cache never writes into a store. A damaged or foreign entry counts as a miss.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from ..rules.policy_file.policy import Policy
from ..store.parquet.digests import kept_log_digest, read_digests
from ..store.run import Run
from ..store.run_folder import RUN_JSON, listing_of, read_file, states_of_files
from .value_encoding import ValueCodec

#: Size limit of the folder. The least recently used entries are evicted first.
LIMIT_BYTES: Final = 256 * 2**20

_MAGIC: Final = b"steptape cache 1\n"
_ROOMS: Final = ("store", "rules", "replay")
_SUFFIX: Final = ".entry"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of cached results. Several processes may use it at once.

    Attributes:
        folder: The cache folder; created at the first write.
        limit_bytes: Its size limit.
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def answer(
        self, run: Run, asked: tuple[object, ...] | None, codec: ValueCodec, ask: Callable[[], _Answer]
    ) -> tuple[_Answer, bool]:
        """Return the result for a run, and whether it came from the cache.

        Args:
            run: The run.
            asked: Everything the result depends on except the run, as text and numbers; None to bypass the cache.
            codec: Encodes and decodes the result.
            ask: Computes the result on a miss.
        """
        key = None if asked is None else key_of(run, asked, codec)
        found: Any = self._read(key, codec)
        if found is not None:
            answer: _Answer = found
            return answer, True
        answer = ask()
        # A run that grew meanwhile has another key: the result belongs to neither.
        if key is not None and asked is not None and key == key_of(run, asked, codec):
            self._write(key, codec, answer)
        return answer, False

    def kept(self, run: Run, asked: tuple[object, ...] | None, codec: ValueCodec) -> Any:
        """Return the kept result for a run; None on a miss.

        Args:
            run, asked, codec: As for ``answer``.
        """
        return self._read(None if asked is None else key_of(run, asked, codec), codec)

    def prune(self) -> None:
        """Delete the least recently used entries until the folder is within its limit."""
        try:
            entries = [state for state in states_of_files(self.folder) if state[0].endswith(_SUFFIX)]
        except OSError:
            return
        total = sum(size for _, size, _ in entries)
        for name, size, _ in sorted(entries, key=lambda entry: entry[2]):
            if total <= self.limit_bytes:
                return
            total -= size
            _drop(self.folder / name)

    def _read(self, key: str | None, codec: ValueCodec) -> Any:
        if key is None:
            return None
        path = self._path(key)
        try:
            content = path.read_bytes()
            text = _unwrapped(content, key)
            answer = codec.decoded(text)
            path.touch()
        except OSError:
            return None
        except (ValueError, zlib.error):
            _drop(path)
            return None
        return answer

    def _write(self, key: str, codec: ValueCodec, answer: object) -> None:
        """Write to a temporary file and rename it, so that no reader sees a partial entry. Ignore a failed write."""
        try:
            content = _wrapped(codec.encoded(answer), key)
        except TypeError:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as aside:
                aside.write(content)
            Path(aside.name).replace(self._path(key))
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def cached_answer(
    cache: Cache | None,
    run: Run,
    asked: tuple[object, ...] | None,
    codec: ValueCodec,
    ask: Callable[[], _Answer],
) -> tuple[_Answer, bool]:
    """Like ``Cache.answer``, but compute the result when there is no cache."""
    return (ask(), False) if cache is None else cache.answer(run, asked, codec, ask)


def policy_identity(policy: Policy) -> tuple[object, ...] | None:
    """Return the parts of a cache key that identify a policy, its text included: messages quote it.

    Returns None for a policy that uses classes from outside steptape: no digest covers the code of foreign metrics and
    operations, wherever they were installed from.
    """
    if not policy.is_self_contained:
        return None
    params = sorted((name, repr(value)) for name, value in policy.params.items())
    return policy.digest, policy.semantics_version, policy.source, policy.text, params


def key_of(run: Run, asked: tuple[object, ...], codec: ValueCodec) -> str | None:
    """Return the cache key of a result; None if the run has no log digest, because it may still grow.

    The log digest is the one kept at the run's end. A file edited since then has another size or mtime. A run with a
    digest has no journal, so its status depends on ``run.json`` alone.
    """
    try:
        kept = read_digests(run.folder)
        files = states_of_files(run.folder)
        about = hashlib.sha256(read_file(run.folder, RUN_JSON)).hexdigest()
    except OSError:
        return None
    digest = kept_log_digest(kept, listing_of(run.folder, [name for name, _, _ in files]))
    if not digest:
        return None
    known_by = (code_digest(), codec.layout, asked, digest, about, files)
    return hashlib.sha256(repr(known_by).encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def code_digest() -> str:
    """Return the digest of the code that reads, decides and judges: another version of steptape gives other results."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _wrapped(text: str, key: str) -> bytes:
    body = zlib.compress(text.encode(), 1)
    return _MAGIC + hashlib.sha256(key.encode() + body).digest() + body


def _unwrapped(content: bytes, key: str) -> str:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    body = content[start:]
    if content[:start] != _MAGIC + hashlib.sha256(key.encode() + body).digest():
        raise ValueError("not an entry of this cache")
    return zlib.decompress(body).decode()


def _drop(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return

"""Maps functions over runs on a Ray cluster. Results keep the order of the runs, as in ``RunPool``.

A task holds a block of runs. Ray repeats the tasks of lost workers and nodes. Function and runs travel as pickles:
policies are parsed again. Runs come from a disk that all nodes share, or each node fetches them from object storage.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import platform
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

from ..rules.policy_file.policy import register_classes, registered_classes
from ..store.errors import TelemetryError
from ..store.objects.mirror_access import fetch_logs
from .run_pool import Blocks, folders_in, timed_answers

_Answer = TypeVar("_Answer")


_Asked = TypeVar("_Asked")


#: Times that Ray repeats a task whose worker or node was lost.
RETRIES: Final = 3


#: Blocks per core that may be computed ahead of the next one wanted. This bounds the results in memory.
_AHEAD: Final = 4


#: The rooms that tasks import, for nodes that lack this version of steptape.
_ROOMS: Final = ("importers", "replay", "rules", "store")


#: The rooms that read, decide and judge.
_DIGESTED: Final = ("store", "rules", "replay")


class UnseenRun(TelemetryError):
    """A node does not see the folder of a run."""


class RayPool:
    """Pool of the workers of a Ray cluster, for the argument ``pool`` of ``backtest``, ``sweep`` and ``certify``.

    Each call joins the cluster and leaves it. In a ``with`` block, all calls share one connection. A cluster that was
    started here ends with the block; one that was joined keeps running, and a program that has called ``ray.init``
    stays connected.

    Args:
        address: ``HOST:PORT`` of the cluster to join, ``auto`` for the one on this machine, ``local`` for a new one. By
            default ``RAY_ADDRESS`` or the cluster on this machine is joined; without either, a new one is started.

    Raises:
        TelemetryError: Ray is not installed.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray  # An extra that takes 0.5 s to load.
        except ImportError as error:
            raise TelemetryError("Ray is not installed", fix="Run pip install 'steptape[ray]'") from error
        self._ray: Any = ray
        self._address = address
        self._entered = 0
        self._open = ExitStack()
        self._running: set[Any] = set()

    def __enter__(self) -> Self:
        if self._entered == 0:
            with ExitStack() as opening:
                self._connect(opening)
                self._open = opening.pop_all()
        self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered -= 1
        if error is not None:
            self._cancel(self._running)
        if self._entered == 0:
            self._open.close()

    def mapped(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        """Yield the results in order. If the caller stops early or fails, the tasks still running are cancelled.

        Args:
            function: The function to map; it and its results must be picklable.
            asked: Its arguments.

        Raises:
            TelemetryError: A node does not see a run, or a task was lost more often than it is repeated.
            Exception: Whatever the function raises, with a note that names its argument.
        """
        if self._entered == 0:
            raise TelemetryError("the pool is not open", fix="Write 'with RayPool() as pool:'")
        task = self._ray.remote(_answers).options(max_retries=RETRIES, name="steptape", scheduling_strategy="SPREAD")
        job = self._ray.put((*self._pickled(function), str(Path.cwd())))
        blocks, waiting = Blocks(asked), deque[tuple[Any, Sequence[_Asked]]]()
        try:
            while waiting or not blocks.is_done:
                cores = int(self._ray.cluster_resources().get("CPU", 1))
                while len(waiting) < _AHEAD * cores and not blocks.is_done:
                    block = blocks.next_block(cores)
                    waiting.append((task.remote(job, pickle.dumps(block)), block))
                    self._running.add(waiting[-1][0])
                reference, block = waiting.popleft()
                answers, took_s = self._received(function, block, reference)
                self._running.discard(reference)
                blocks.measure(len(block), took_s)
                yield from answers
        finally:
            self._cancel([reference for reference, _ in waiting])

    def _cancel(self, references: Iterable[Any]) -> None:
        """End tasks, those that run included."""
        for reference in tuple(references):
            self._running.discard(reference)
            self._ray.cancel(reference, force=True)

    def _received(
        self, function: Callable[[_Asked], _Answer], block: Sequence[_Asked], reference: Any
    ) -> tuple[list[_Answer], float]:
        """Wait for a block, and return its results with the seconds that they took."""
        try:
            answers, took_s = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, UnseenRun) or self._is_here(block):
                _reraise(error)
            return [function(one) for one in block], 0.0  # A run was deleted here, too.
        except self._ray.exceptions.RayError as error:
            where = f"{block[0]!r}" + (f" to {block[-1]!r}" if len(block) > 1 else "")
            fix = "It may have run out of memory: give Ray fewer cores"
            what = f"Ray lost a task, and {RETRIES} repetitions of it ({type(error).__name__})"
            raise TelemetryError(what, where=where, fix=fix) from error
        return answers, took_s

    def _is_here(self, block: Sequence[object]) -> bool:
        """Whether this process sees the runs of a block."""
        return all(map(_is_seen, block))

    def _connect(self, opening: ExitStack) -> None:
        """Join or start a cluster. Ship this code if a node lacks it: Ray does so only while it joins."""
        is_callers = self._ray.is_initialized()
        if not is_callers:
            self._init(self._address)
            opening.callback(self._ray.shutdown)
        if not self._lacks_code():
            return
        if is_callers:
            fix = "Install this version there, or let RayPool call ray.init"
            raise TelemetryError("a node of the Ray cluster has another steptape", fix=fix)
        address = self._ray.get_runtime_context().gcs_address
        self._ray.shutdown()
        with tempfile.TemporaryDirectory() as folder:
            self._init(address, {"py_modules": [str(_package_copy(Path(folder)))]})

    def _init(self, address: str | None, environment: Mapping[str, Any] | None = None) -> None:
        try:
            self._ray.init(
                address,
                runtime_env=environment,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
            )
        except Exception as error:  # Ray raises Exception itself where a node does not start in time.
            fix = "'ray status' lists running clusters; 'local' starts a new one"
            raise TelemetryError(f"no Ray cluster ({error})", where=address or "", fix=fix) from error

    def _lacks_code(self) -> bool:
        """Whether any node has no steptape, or another one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look = self._ray.remote(_code_looker())
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        places = [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
        try:
            looks = (look.options(num_cpus=0, scheduling_strategy=place).remote() for place in places)
            found = self._ray.get(list(looks))
        except self._ray.exceptions.RayError as error:
            raise TelemetryError(f"a node of the Ray cluster runs no task ({error})") from error
        return any(digest != code_digest() for digest in found)

    def _pickled(self, function: Callable[[Any], Any]) -> tuple[bytes, bytes]:
        """Pickle the classes that this program registered, and a function. What its main script defines goes by value.

        They are two pickles: a policy can be unpickled only where the classes that it names are registered.
        """
        dumps = self._ray.cloudpickle.dumps
        return dumps(registered_classes()), dumps(function)


def _code_looker() -> Callable[[], str | None]:
    """Return a function that returns the digest of a node's code. Ray ships it by value, because it is a closure."""

    def look() -> str | None:
        try:
            digest: str = import_module(f"{__package__}.ray_pool").code_digest()
        except (ImportError, AttributeError):
            return None
        return digest

    return look


def _package_copy(folder: Path) -> Path:
    """Copy the package into one folder: an editable installation has its rooms in several."""
    target = folder / "steptape"
    for room in ("", *(f".{room}" for room in _ROOMS)):
        spec = find_spec(f"{__name__.partition('.')[0]}{room}")
        assert spec is not None
        assert spec.submodule_search_locations
        source = spec.submodule_search_locations[0]
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target / room[1:], ignore=ignored, dirs_exist_ok=True)
    return target


def _reraise(error: Any) -> NoReturn:
    """Raise what a task raised, from Ray's error with the traceback of the worker."""
    raise error.cause if isinstance(error.cause, Exception) else error from error


def _answers(job: tuple[bytes, bytes, str], block: bytes) -> tuple[list[Any], float]:
    """Compute the results of a block in a worker; return them with the seconds that they took."""
    registered, function, folder = job
    with ExitStack() as there:
        if Path(folder).is_dir():
            there.enter_context(chdir(folder))  # Paths may be relative to the folder of the caller.
        call = _loaded(registered, function)

        def answer(one: Any) -> Any:
            if not _is_seen(one):
                where, fix = f"node {platform.node()}", "Keep the store on a disk that all nodes share"
                raise UnseenRun("it does not see this run", where=where, got=one, fix=fix)
            return call(one)

        asked = pickle.loads(block)
        fetch_logs(folders_in(asked))
        return timed_answers(answer, asked)


@functools.lru_cache(maxsize=4)
def _loaded(registered: bytes, function: bytes) -> Callable[[Any], Any]:
    """Register the caller's classes and unpickle its function, once per process."""
    register_classes(pickle.loads(registered))
    call: Callable[[Any], Any] = pickle.loads(function)
    return call


def _is_seen(asked: object) -> bool:
    """Whether the folders of the runs in an argument exist here."""
    return all(folder.is_dir() for folder in folders_in([asked]))


@functools.cache
def code_digest() -> str:
    """Return the digest of the code that reads, decides and judges; another version may give other results."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for room in _DIGESTED:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()

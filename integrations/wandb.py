"""Records what a script logs to W&B: ``import steptape.integrations.wandb as wandb``.

Values become events of a run. Other calls that write are accepted: what has no meaning here is left out with one
warning. Calls that read from W&B's service are errors. ``init(passthrough=True)`` also logs to the real W&B.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import random
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Self

from ..importers.call_steps import CallSteps
from ..recorder.advice import WANDB, advising
from ..recorder.arguments import MOVED_ARGUMENTS, Arguments, Ranks, completed
from ..recorder.recorder import Recorder
from ..store.errors import TelemetryError
from ..store.run_folder import RUN_JSON
from ..store.store import open_run
from .step_rows import StepRows, flattened, step_of, warn_once

_MEDIA: Final = frozenset(
    ("Artifact", "Audio", "Graph", "Histogram", "Html", "Image", "JoinedTable", "Molecule", "Object3D", "Plotly")
) | {"Settings", "Table", "Video", "plot"}

_CALLS: Final = frozenset(
    ("link_artifact", "log_artifact", "log_code", "mark_preempting", "require", "save", "setup", "unwatch", "watch")
)

#: What a run without W&B's service has under these names.
_LOCAL: Final = {"offline": True} | dict.fromkeys(("entity", "path", "settings", "start_time", "sweep_id"))

_PARAMETERS: Final = {*inspect.signature(Recorder.__init__).parameters, *MOVED_ARGUMENTS}

#: The run that ``log`` and the other functions are about; None before ``init`` and after ``finish``.
run: WandbRun | None = None

_ERRORS: dict[str, type[Exception]] = {"Error": type("Error", (Exception,), {})}
_ERRORS |= {name: type(name, (_ERRORS["Error"],), {}) for name in ("AuthenticationError", "CommError", "UsageError")}

#: What scripts name without calling it: the errors that they catch, which nothing here raises, and the like.
_NAMES: Final = {
    "AlertLevel": SimpleNamespace(INFO="INFO", WARN="WARN", ERROR="ERROR"),
    "Error": _ERRORS["Error"],
    "errors": SimpleNamespace(**_ERRORS),
    "__version__": "0.31.0",  # The one that the tests compare with.
}

util: Final = SimpleNamespace(
    generate_id=lambda length=8: "".join(random.choices(string.ascii_lowercase + string.digits, k=length))
)


class _NamedValues(dict[str, Any]):
    """Values by key or attribute, as W&B's config and summary. Every change is passed on."""

    def __init__(self, values: Mapping[str, Any], on_change: Callable[[Mapping[str, Any]], object]) -> None:
        super().__init__(values)
        self.__dict__["_on_change"] = on_change

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    __setattr__ = __setitem__

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def update(self, values: Any = (), /, allow_val_change: bool = True, **more: Any) -> None:
        """Set values."""
        changed = {**dict(_mapping_of(values)), **more}
        super().update(changed)
        self.__dict__["_on_change"](changed)

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a plain dict."""
        return dict(self)

    def setdefaults(self, values: Mapping[str, Any]) -> None:
        """Set the values that are missing."""
        self.update({name: value for name, value in values.items() if name not in self})


class WandbRun:
    """One run, as ``init`` returns it.

    Args:
        recorder: Records it.
        rows: Its rows.
        steps: Place the rows.
        config: Its hyper-parameters.
        real: The real run that everything is passed through to.
        **described: Further attributes, such as ``name`` and ``project``.

    Attributes:
        recorder: The recorder, for what W&B has no call for.
        id: The run's id.
        dir: The run's folder.
        config, summary: Values by key or attribute.
    """

    def __init__(
        self, recorder: Recorder, steps: CallSteps, config: Mapping[str, Any], real: Any, *, step: int, **described: Any
    ) -> None:
        self.recorder, self.id, self.dir = recorder, recorder.run_id, str(recorder.folder.absolute())
        self.config = _NamedValues(config, self._declare)
        self.summary = _NamedValues({}, self._summarise)
        self._summary: dict[str, object] = {}
        self._rows, self._steps, self._real = StepRows(recorder, step, steps), steps, real
        self.__dict__.update(described)
        atexit.register(self._end)

    @property
    def is_passed_through(self) -> bool:
        """Whether the real W&B logs the run, too."""
        return self._real is not None

    @property
    def step(self) -> int:
        """The step of the next row."""
        return self._rows.step

    @property
    def control(self) -> Any:
        """The control flags. To read them commits the current row, so that rules have judged it."""
        self._rows.commit()
        return self.recorder.control

    @property
    def should_stop(self) -> bool:
        """Whether a rule asked for the end of the training."""
        return bool(self.control.should_stop)

    @property
    def url(self) -> str:
        """The address of the run's folder."""
        return self.recorder.folder.absolute().as_uri()

    def project_name(self) -> str:
        """Return ``project``."""
        return str(self.project or "")

    def get_url(self) -> str:
        """Return ``url``."""
        return self.url

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: Any = None
    ) -> None:
        """Add values to the row of a step; record the row when the step changes, or now with ``commit``.

        Without a step, each row is one more, and a value such as ``global_step`` or ``iter`` counts the steps instead.
        """
        if self._real is not None:
            self._real.log(data, step=step, commit=commit)
        values = {name: value for name, value in flattened(data, ".") if not _is_media(value)}
        self._rows.add(values, step_of(step, self._rows.step))
        dict.update(self.summary, values)
        if commit or (commit is None and step is None):
            self._rows.commit()
            self._rows.step += 1

    def define_metric(self, name: str, step_metric: str | None = None, **others: Any) -> None:
        """Count the steps by a step metric such as ``global_step``. Everything else is accepted and ignored."""
        if self._real is not None:
            self._real.define_metric(name, step_metric=step_metric, **others)
        if step_metric is not None:
            self._steps.count_by(step_metric)

    def alert(self, title: str, text: str = "", level: Any = None, wait_duration: Any = None) -> None:
        """Record a note."""
        if self._real is not None:
            self._real.alert(title, text, level=level, wait_duration=wait_duration)
        self.recorder.annotate(f"{title}: {text}" if text else title)

    def log_model(self, path: str | os.PathLike[str], name: str | None = None, aliases: Any = None) -> None:
        """Record a checkpoint, at the step of the current row, which is complete then."""
        if self._real is not None:
            self._real.log_model(path, name, aliases)
        self._rows.commit()
        self.recorder.save(path)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Record the last row and end the run; as ``failed`` with an exit code other than 0."""
        global run
        self._end()
        if exit_code:
            self.recorder.close(status="failed", reason=f"finish(exit_code={exit_code})")
        self.recorder.close()
        if self._real is not None:
            self._real.finish(exit_code=exit_code)
        if run is self:
            run = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._end()
            self.recorder.fail(error)
        self.finish(exit_code=None if error is None else 1)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("group", "name", "notes", "tags"):
            warn_once(f"run.{name} = ...: a run keeps the {name} that init gave it")
            if self._real is not None:
                setattr(self._real, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        real = self.__dict__.get("_real")
        if real is not None:
            return getattr(real, name)
        if name in _CALLS:
            return functools.partial(_leave_out, name)
        if name in _LOCAL:
            return _LOCAL[name]
        raise AttributeError(f"steptape's run has no {name!r}. init(passthrough=True) has all of W&B's")

    def _end(self) -> None:
        atexit.unregister(self._end)
        self._rows.commit()
        if self._summary:
            self.recorder.annotate("summary", values=self._summary)
            self._summary = {}

    def _declare(self, changed: Mapping[str, Any]) -> None:
        self.recorder.declare(config=changed)
        if self._real is not None:
            self._real.config.update(changed, allow_val_change=True)

    def _summarise(self, changed: Mapping[str, Any]) -> None:
        self._summary.update(changed)
        if self._real is not None:
            self._real.summary.update(changed)


class _StandIn:
    """A stand-in for W&B's media, tables, artifacts and settings. Its methods do nothing."""

    def __init__(self, *given: Any, **named: Any) -> None:
        _leave_out(type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: self  # noqa: ARG005


def init(
    *,
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    group: str | None = None,
    tags: Sequence[str] | None = None,
    id: str | None = None,  # noqa: A002
    resume: bool | str | None = None,
    mode: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002
    notes: str | None = None,
    store: str | os.PathLike[str] | None = None,
    resume_step: int | None = None,
    reinit: bool | str | None = None,
    sync_tensorboard: bool = False,
    passthrough: bool = False,
    **others: Any,
) -> WandbRun:
    """Begin a run. If one has not finished, return it; in a notebook, or with ``reinit``, finish it first.

    Args:
        project: The run's group, unless it has one.
        name, config, group, tags, notes: As in W&B.
        id: The run's id.
        resume: Continue the run with this id: ``allow``, ``auto``, ``must`` or True.
        mode: ``disabled`` records nothing.
        dir: A folder, in which ``runs`` is the store unless ``store`` or ``STEPTAPE_STORE`` names one.
        store: The store; by default ``STEPTAPE_STORE`` or ``runs``.
        resume_step: Continue the run after this step; after its last one if not given.
        reinit: What becomes of a run that has not finished: ``return_previous`` or ``finish_previous``, as True.
        sync_tensorboard: ``SummaryWriter`` of ``steptape.integrations.tensorboard`` writes into this run.
        passthrough: Also log to the real W&B.
        **others: Arguments of ``Recorder``, such as ``rules``, and of W&B.
    """
    global run
    finishes = reinit in (True, "finish_previous") or (reinit in (None, "default") and "ipykernel" in sys.modules)
    if run is not None and finishes:
        run.finish()
    elif run is not None:
        warn_once("init: a run has not finished; init returns it. Call wandb.finish() first, or give reinit=True")
        return run
    own = {argument: others.pop(argument) for argument in [*others] if argument in _PARAMETERS}
    real = None
    if passthrough:
        called = {"name": name, "config": config, "group": group, "tags": tags, "notes": notes}
        placed = {"id": id, "resume": resume, "mode": mode, "dir": dir, "sync_tensorboard": sync_tensorboard}
        placed |= {} if reinit is None else {"reinit": reinit}
        import wandb

        real = wandb.init(project=project, **called, **placed, **others)
        id, name, config = real.id, real.name, dict(real.config)  # noqa: A001
    elif others:
        warn_once(f"init: {', '.join(sorted(others))}: without meaning here")
    folder = Path(store or os.environ.get("STEPTAPE_STORE") or Path(dir or "") / "runs").expanduser()
    is_disabled = (mode or os.environ.get("WANDB_MODE")) == "disabled"
    own |= {"mode": "disabled"} if is_disabled else {}
    # A rank of its own: W&B's runs belong to one process, and scripts call init on rank 0 alone.
    own = completed({**_continued(folder, id, resume, resume_step), **own}, Ranks, rank=0)
    with advising(WANDB):
        recorder = Recorder(folder, name=name, group=group or project, tags=tags or (), config=config, **own)
    step = own["resume"][1] + 1 if "resume" in own else 0
    described: Arguments = {"name": name or recorder.run_id, "project": project, "group": group, "notes": notes}
    described |= {"tags": tuple(tags or ()), "resumed": step > 0, "disabled": is_disabled}
    described |= {"syncs_tensorboard": sync_tensorboard, "step": step}
    run = WandbRun(recorder, CallSteps(), _mapping_of(config), real, **described)
    if notes:
        recorder.annotate(notes)
    return run


def log(data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
    """Log to the run, as ``WandbRun.log``."""
    _begun("log").log(data, step=step, commit=commit)


def log_model(path: str | os.PathLike[str], name: str | None = None, aliases: Any = None) -> None:
    """Record a checkpoint of the run, as ``WandbRun.log_model``."""
    _begun("log_model").log_model(path, name, aliases)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:  # noqa: ARG001
    """End the run, as ``WandbRun.finish``, if there is one."""
    if run is not None:
        run.finish(exit_code)


def login(*given: Any, **named: Any) -> bool:  # noqa: ARG001
    """Return True: nobody has to log in."""
    return True


def __getattr__(name: str) -> Any:
    if name in ("alert", "config", "define_metric", "summary"):
        return getattr(_begun(name), name)
    # The real W&B raises its own errors, be it before its run has begun.
    if "wandb" in sys.modules and (name in _NAMES or (run is not None and run.is_passed_through)):
        return getattr(sys.modules["wandb"], name)
    if name in _NAMES:
        return _NAMES[name]
    if name == "plot":
        return _media(name)()
    if name in _MEDIA:
        return _media(name)
    if name in _CALLS:
        return functools.partial(_leave_out, name)
    raise AttributeError(f"steptape's wandb has no {name!r}. After init(passthrough=True) it has all of W&B's")


def _begun(call: str) -> WandbRun:
    if run is None:
        raise TelemetryError(f"wandb.{call}: no run has begun", fix="Call wandb.init first")
    return run


@functools.cache
def _media(name: str) -> type[_StandIn]:
    return type(name, (_StandIn,), {})


def _leave_out(name: str, *given: Any, **named: Any) -> _StandIn:  # noqa: ARG001
    """Warn of a call that has no effect. Return an object with every method."""
    warn_once(f"{name} is left out: steptape records numbers and text. init(passthrough=True) logs it")
    return _StandIn.__new__(_StandIn)


def _is_media(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_media, value))
    return isinstance(value, _StandIn) or type(value).__module__.partition(".")[0] == "wandb"


def _mapping_of(values: Any) -> Mapping[str, Any]:
    if isinstance(values, (Mapping, list, tuple)):
        return dict(values)
    return vars(values) if hasattr(values, "__dict__") else {}


def _continued(store: Path, run_id: str | None, resume: bool | str | None, step: int | None) -> Arguments:
    """Return the arguments that name a run's id, or that resume it: after its last step, unless another is given."""
    if run_id is None:
        return {}
    run_id = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)
    if not resume or resume == "never" or (resume != "must" and not (store / run_id / RUN_JSON).exists()):
        return {"run_id": run_id}
    if step is None:
        step = max((event.step for event in open_run(store / run_id).events()), default=0)
    return {"resume": (run_id, step)}

"""Serves rule files: those that clients can name, those that a run was recorded under, and trials of new ones.

``/rules/check`` finds errors in a rule file, and ``/rules/test`` runs a file of tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi import Query as InQuery
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool

from ...rules.checks.finding_codes import FindingCode
from ...rules.errors import PolicyError, PolicyProblem
from ...rules.policy_file.policy import load_policy, shipped_policies
from ...rules.readings.reading import Param
from ...store.events import JsonObject
from ...store.run_folder import new_file, replace_file
from ...store.store import Store
from ..access import OpenStore, RequestedRun, RunAccess, file_stamp, find_run, policies_known, policy_named
from ..answers import IN_EVERY_FORM, model_answer, page_answer
from ..models import FormedQuery, FreeObject, Int64, Model, Page, RequestModel
from ..problems import InvalidRequest, NameTaken, NotSaved, without_path
from ..workers.pool import RuleWorkers
from ..workers.worker_requests import FiringsTrial, PolicyTrial, ProposalTrial, ScenarioTrial

router = APIRouter()

#: Most runs whose firings one answer has.
MOST_AT_ONCE: Final = 200

#: Names of rule files to save. They are file names, so they have no slash and begin with no dot.
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"


class PolicyRow(Model):
    """A rule file."""

    name: str
    origin: Literal["shipped", "folder"]
    """`shipped` with steptape, or from the `folder` that the server was given."""
    digest: str | None
    """Digest of the rule file; null if it does not load."""
    description: str
    params: FreeObject
    error: str | None
    """Why it does not load; null if it does."""


class SavedPolicy(Model):
    """A rule file that was saved."""

    name: str
    digest: str
    path: str
    """Path on the server's machine: what `Recorder(rules=...)` takes there."""


class RulesRequest(RequestModel):
    """Rules, and values of their params."""

    text: str = Field(max_length=200_000)
    """Text of the rule file, YAML; or rules as sentences."""
    params: dict[str, Param] = Field(default_factory=dict, max_length=100)
    """Values that replace the file's own."""


class SavingRequest(RulesRequest):
    """A rule file to save, with the values of its params."""

    replace: bool = False
    """Whether to replace a rule file of that name."""


class PolicyDetail(PolicyRow):
    """A rule file and its text."""

    text: str


class PolicyPage(Page):
    """Rule files, by name."""

    items: list[PolicyRow]


class RunPolicy(Model):
    """The rule file that an attempt of a run was recorded under."""

    attempt: int
    digest: str
    source: str
    text: str
    params: FreeObject
    semantics_version: int


class RunPolicyPage(Page):
    """Rule files, by attempt."""

    items: list[RunPolicy]


@router.get("/policies", summary="Rule files", response_model=PolicyPage, responses=IN_EVERY_FORM)
def list_policies(request: Request, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the rule files that come with steptape, and those of the folder that the server was given."""
    known = policies_known(request.app.state.policies)
    items = [_row(name, path, file_stamp(path)) for name, path in sorted(known.items())]
    return page_answer(request, PolicyPage(items=items, next=None), query.format)


@router.get("/policies/{name}", summary="One rule file with its text", response_model=PolicyDetail)
def read_policy(
    request: Request, name: Annotated[str, InPath(max_length=200, description="The rule file's name.")]
) -> Response:
    """Return a rule file and its text."""
    path = policy_named(name, request.app.state.policies)
    text = path.read_text(encoding="utf-8", errors="replace")
    return model_answer(request, PolicyDetail(**dict(_row(name, path, file_stamp(path))), text=text))


@router.put("/policies/{name}", summary="Save a rule file", status_code=201)
async def save_policy(
    request: Request,
    name: Annotated[str, InPath(pattern=_NAME, description="The rule file's name.")],
    body: SavingRequest,
) -> SavedPolicy:
    """Check a rule file, and save it in the folder that the server was given with `--rules-folder`.

    A name that is taken, also by a shipped rule file, is refused without `replace`.
    """
    folder: Path | None = request.app.state.policies
    if folder is None:
        fix = "Start it with 'steptape serve --rules-folder FOLDER'"
        raise NotSaved("this server has no folder of rule files", got=name, fix=fix)
    if name.endswith(".test"):
        raise InvalidRequest("files of tests have such names", where="path.name", got=name, fix="Choose another name")
    checked = CheckAnswer.model_validate(await _workers(request).run_trial(PolicyTrial(body.text, body.params, [])))
    if checked.ok and checked.rule_file is None:
        fix = "Write its params into the file"
        raise NotSaved("the file takes the values of its params from another one", got=name, fix=fix)
    if checked.rule_file is None or checked.digest is None:
        raise PolicyError(PolicyProblem(name, each.line, each.column, each.message) for each in checked.problems)
    path = folder / f"{name}.yaml"
    content = checked.rule_file.encode()
    await run_in_threadpool(_write, path, content, is_replaced=body.replace)
    return SavedPolicy(name=name, digest=checked.digest, path=str(path))


def _write(path: Path, content: bytes, *, is_replaced: bool) -> None:
    """Write a rule file whole or not at all.

    Raises:
        NameTaken: A rule file has the name, and is not to be replaced.
        NotSaved: The folder cannot be written to.
    """
    taken = NameTaken("a rule file has this name", got=path.stem, fix="Choose another name, or say 'replace'")
    if not is_replaced and (path.stem in shipped_policies() or path.exists()):
        raise taken
    try:
        replace_file(path, content) if is_replaced else new_file(path, content)
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise NotSaved(f"the folder of rule files cannot be written to ({error.strerror})", got=path.stem) from None


@router.get("/runs/{id}/policies", summary="Rule files of a run", response_model=RunPolicyPage, responses=IN_EVERY_FORM)
def list_run_policies(request: Request, run: RequestedRun, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the rule file of each attempt that had one, as it was at the time."""
    items = [
        RunPolicy(attempt=attempt.attempt, **asdict(attempt.policy))
        for attempt in run.entry().snapshot.info.attempts
        if attempt.policy is not None
    ]
    return page_answer(request, RunPolicyPage(items=items, next=None), query.format)


@lru_cache(maxsize=256)
def _row(name: str, path: Path, _stamp: tuple[int, int]) -> PolicyRow:
    # All shipped rule files take 2 s of processor time to load.
    origin: Literal["shipped", "folder"] = "shipped" if path == shipped_policies().get(name) else "folder"
    try:
        policy = load_policy(path)
    except PolicyError as error:
        shown = str(error).replace(str(path), path.name)
        return PolicyRow(name=name, origin=origin, digest=None, description="", params={}, error=shown)
    return PolicyRow(
        name=name,
        origin=origin,
        digest=policy.digest,
        description=policy.description or "",
        params=dict(policy.params),
        error=None,
    )


class CheckRequest(RulesRequest):
    """A rule file to check."""

    runs: list[str] = Field(default_factory=list, max_length=100)
    """Also check the rules against these runs: ids, or names: the newest run of several with it."""


class RuleProblem(Model):
    """An error in a file, and its location."""

    line: int
    column: int
    message: str


class RuleWarningItem(RuleProblem):
    """A likely mistake in a rule file, and its location."""

    code: str = Field(description=f"The kind of warning: {', '.join(FindingCode)}.")


class CouldFire(Model):
    """In how many of the runs the rule file could fire, whatever their values."""

    runs: int
    could_fire: int
    reasons: dict[str, int]
    """Number of the other runs by what they lack, the commonest first."""
    controllers: dict[str, int]
    """For each controller that decides, the number of runs in which it could."""


class CheckAnswer(Model):
    """The result of a check."""

    ok: bool
    """Whether the rule file loads."""
    digest: str | None
    problems: list[RuleProblem]
    warnings: list[RuleWarningItem]
    could_fire: CouldFire | None = None
    """Null without runs."""
    params: FreeObject | None = None
    """The values of its params; null if it does not load."""
    choices: dict[str, list[Param]] = Field(default_factory=dict)
    """The values to try that sentences have in braces, by the param that takes their place."""
    ranges: dict[str, tuple[float, float, float]] = Field(default_factory=dict)
    """Least and greatest value of a slider and its step, by param that is a number."""
    rule_file: str | None = None
    """The text as a rule file with these values of its params; null if it does not load."""
    asks_for_checkpoints: bool = False
    """Whether any rule orders a checkpoint."""


class FiringsRequest(RulesRequest):
    """A rule file, and runs in which it may fire."""

    runs: list[str] = Field(min_length=1, max_length=MOST_AT_ONCE)
    """Ids of runs, or names: the newest run of several with it."""


class RunFiringSteps(Model):
    """Where a rule file fires in one run, over the whole record: also after a stop."""

    run_id: str
    firings: int
    first_step: int | None
    """Null without a firing."""
    stop_step: int | None
    """Step of the first firing that stops the run."""
    steps: list[int]
    """The first 40 steps at which a rule fires."""
    controllers: dict[str, int]
    """Number of firings of each rule that fires."""
    could_not_fire: str
    """Why none could fire, whatever the values in the run; empty if one could."""
    error: str
    """Why the run cannot be read; empty if it can."""


class FiringsAnswer(Model):
    """Where a rule file fires, run by run."""

    items: list[RunFiringSteps]


class ProposalRequest(RequestModel):
    """A place of a curve for which a rule is wanted."""

    run: str = Field(max_length=1000)
    """Id of the run, or its name: the newest run of several with it."""
    metric: str = Field(max_length=1000)
    first_step: Int64
    last_step: Int64

    @model_validator(mode="after")
    def _in_order(self) -> ProposalRequest:
        if self.first_step > self.last_step:
            raise ValueError("'first_step' is at most 'last_step'")
        return self


class ProposalAnswer(Model):
    """A rule for a place of a curve."""

    text: str
    """A sentence, or a rule file where no sentence is asked at the right events."""
    step: int
    """The step at which it fires there."""
    fires: int
    """Number of firings in the whole run."""
    why: str
    """Why the rule is proposed: what the metric does at that step."""


class TestRequest(RequestModel):
    """Rule tests to run."""

    tests: str = Field(max_length=200_000)
    """Text of the test file, YAML. Its `policy:` names one of `policies`, or one that `GET /policies` lists."""
    policies: dict[str, str] = Field(default_factory=dict, max_length=20)
    """Texts of rule files, by the names that the tests use."""


class TestAnswer(Model):
    """The result of the tests."""

    ok: bool
    """Whether everything loads and passes."""
    problems: list[RuleProblem]
    """Errors in files that do not load."""
    results: list[JsonObject]
    """Results as `steptape test --json` prints them."""


@router.post("/rules/check", summary="Check a rule file")
async def check_rules(request: Request, store: OpenStore, body: CheckRequest) -> CheckAnswer:
    """Return all errors of a rule file at once or, if it loads, its likely mistakes."""
    folders = await run_in_threadpool(_folders, store, body.runs)
    return CheckAnswer.model_validate(await _workers(request).run_trial(PolicyTrial(body.text, body.params, folders)))


@router.post("/rules/firings", summary="Where a rule file fires")
async def find_firings(request: Request, store: OpenStore, body: FiringsRequest) -> FiringsAnswer:
    """Return at which steps rules fire in some runs, without scores: fast enough to follow a slider.

    The same runs with other values of params need no reading again. A backtest says what the firings are worth.
    """
    runs = await run_in_threadpool(lambda: [_stamped(find_run(store, key)) for key in dict.fromkeys(body.runs)])
    found = await _workers(request).run_trial(FiringsTrial(body.text, body.params, runs))
    items = [{**each, "error": without_path(each["error"], store.path)} for each in found]
    return FiringsAnswer.model_validate({"items": items})


@router.post("/rules/proposals", summary="Write a rule for a place of a curve")
async def propose_rule(request: Request, store: OpenStore, body: ProposalRequest) -> ProposalAnswer:
    """Return a rule that fires between two steps of a run, and as far as possible nowhere else in it."""
    (folder,) = await run_in_threadpool(_folders, store, [body.run])
    trial = ProposalTrial(folder, body.metric, body.first_step, body.last_step)
    return ProposalAnswer.model_validate(await _workers(request).run_trial(trial))


def _folders(store: Store, keys: Sequence[str]) -> list[str]:
    return [str(find_run(store, key).open().folder) for key in keys]


def _stamped(run: RunAccess) -> tuple[str, str]:
    """Return a run's folder, and a text that changes with its log."""
    entry = run.entry()
    journals = [(journal.path.name, *file_stamp(journal.path)) for journal in entry.listing.journals]
    return str(run.open().folder), repr((entry.stamp, journals))


@router.post("/rules/test", summary="Run the tests of a rule file")
async def test_rules(request: Request, body: TestRequest) -> TestAnswer:
    """Simulate the runs in a test file, and compare the decisions with the expected ones."""
    known = {
        name: str(path)
        for name, path in policies_known(request.app.state.policies).items()
        if name not in body.policies and name in body.tests
    }
    return TestAnswer.model_validate(await _workers(request).run_trial(ScenarioTrial(body.tests, body.policies, known)))


def _workers(request: Request) -> RuleWorkers:
    workers: RuleWorkers = request.app.state.rule_workers
    return workers

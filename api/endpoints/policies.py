"""Serves ``/policies``: the rule files that clients can name, and those that a run was recorded under."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi import Query as InQuery

from ...rules.errors import PolicyError
from ...rules.policy_file.policy import Policy, load_policy, shipped_policies
from ...store.event_json import encoded
from ..access import RequestedRun
from ..answers import IN_EVERY_FORM, model_answer, page_answer
from ..errors import PolicyNotFound
from ..models import Model, Page
from ..queries import FormedQuery

router = APIRouter()


class PolicyRow(Model):
    """A rule file."""

    name: str
    origin: Literal["shipped", "folder"]
    """`shipped` with steptape, or from the `folder` that the server was given."""
    digest: str | None
    """Digest of the rule file; null if it does not load."""
    description: str
    params: dict[str, Any]
    error: str | None
    """Why it does not load; null if it does."""


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
    params: dict[str, Any]
    semantics_version: int


class RunPolicyPage(Page):
    """Rule files, by attempt."""

    items: list[RunPolicy]


def policies_known(folder: Path | None) -> dict[str, Path]:
    """Return the rule files that clients can name: those of the folder, and the shipped ones with other names."""
    own = {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml")) if _is_policy(path)}
    return {**shipped_policies(), **own}


def policy_named(name: str, folder: Path | None) -> Path:
    """Return the file of a policy.

    Raises:
        PolicyNotFound: No policy has that name.
    """
    known = policies_known(folder)
    if name not in known:
        raise PolicyNotFound(
            "no policy of the server has this name", got=name, fix=f"Available: {', '.join(sorted(known))}"
        )
    return known[name]


@router.get("/policies", summary="Rule files", response_model=PolicyPage, responses=IN_EVERY_FORM)
def list_policies(request: Request, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the policies that come with steptape, and those of the folder that the server was given."""
    known = policies_known(request.app.state.policies)
    items = [PolicyRow.model_validate(_row(name, path)) for name, path in sorted(known.items())]
    return page_answer(request, PolicyPage(items=items, next=None), query.format)


@router.get("/policies/{name}", summary="One rule file with its text", response_model=PolicyDetail)
def read_policy(
    request: Request, name: Annotated[str, InPath(max_length=200, description="The policy's name.")]
) -> Response:
    """Return a policy and its text."""
    path = policy_named(name, request.app.state.policies)
    text = path.read_text(encoding="utf-8", errors="replace")
    return model_answer(request, PolicyDetail.model_validate({**_row(name, path), "text": text}))


@router.get("/runs/{id}/policies", summary="Rule files of a run", response_model=RunPolicyPage, responses=IN_EVERY_FORM)
def list_run_policies(request: Request, run: RequestedRun, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Return the policy of each attempt that had one, as it was at the time."""
    items = [
        RunPolicy(
            attempt=attempt.attempt,
            digest=attempt.policy.digest,
            source=attempt.policy.source,
            text=attempt.policy.text,
            params=encoded(attempt.policy.params),
            semantics_version=attempt.policy.semantics_version,
        )
        for attempt in run.entry().snapshot.info.attempts
        if attempt.policy is not None
    ]
    return page_answer(request, RunPolicyPage(items=items, next=None), query.format)


def _is_policy(path: Path) -> bool:
    return path.is_file() and not path.name.endswith(".test.yaml")


def _row(name: str, path: Path) -> dict[str, Any]:
    origin = "shipped" if path == shipped_policies().get(name) else "folder"
    try:
        policy: Policy = load_policy(path)
    except PolicyError as error:
        shown = str(error).replace(str(path), path.name)
        return {"name": name, "origin": origin, "digest": None, "description": "", "params": {}, "error": shown}
    return {
        "name": name,
        "origin": origin,
        "digest": policy.digest,
        "description": policy.description or "",
        "params": encoded(dict(policy.params)),
        "error": None,
    }

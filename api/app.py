"""The application: endpoints under their paths, errors as problem details, and the document that describes both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from ..store import open_store
from . import decisions, events, health, run_detail, runs, samples, series
from .guard import Guard
from .models import Problem
from .problems import MEDIA_TYPE, STATUSES, install_handlers

#: Version of the API, not of steptape; it changes when a client would have to.
API_VERSION: Final = "1"
PREFIX: Final = "/api/v1"


def create_app(store_path: str | Path) -> FastAPI:
    """The HTTP application over a store. It reads, and changes nothing.

    Raises:
        StoreNotFound: There is no such folder.
    """
    store = open_store(Path(store_path).absolute())
    app = _Application(
        title="steptape",
        summary="The recorded training runs of one store",
        version=API_VERSION,
        openapi_url=f"{PREFIX}/openapi.json",
        # The pages that FastAPI brings load scripts from another host.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.store_path = store.path
    install_handlers(app)
    app.add_middleware(Guard)
    problems: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in STATUSES}
    app.include_router(health.router, responses={500: problems[500], 503: problems[503]})
    v1 = APIRouter(prefix=PREFIX, responses=problems)
    for room in (runs, run_detail, series, events, samples, decisions):
        v1.include_router(room.router)
    app.include_router(v1)
    return app


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document. FastAPI would say that problems come as plain JSON; they have a type of their own."""
        if self.openapi_schema is None:
            for path in super().openapi()["paths"].values():
                for operation in path.values():
                    _retype_problems(operation["responses"])
        return super().openapi()


def _retype_problems(responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        if status >= "400":
            response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}


def _operation_id(route: APIRoute) -> str:
    return route.name

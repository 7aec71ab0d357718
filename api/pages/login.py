"""Signs users in with a token: a form, and a cookie that sends the token with later requests.

Scripts cannot read the cookie, and browsers do not send it with requests that another site's page starts. The gate also
checks the Origin of every request that changes something.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..middleware.gate import Tokens
from .layout import COOKIE, HEADERS, PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Seconds that a browser stays signed in.
KEPT_S: Final = 30 * 24 * 3600

#: Most bytes of the form: two fields, the token being the longer.
_FORM_BYTES: Final = 8192


@router.get("/login")
def show_login(request: Request, next_: Annotated[str, InQuery(alias="next", max_length=2000)] = "/") -> Response:
    """Return the form."""
    return render_page(request, "login.html", next=own_path(next_), wrong=False)


@router.post("/login")
async def sign_in(request: Request) -> Response:
    """Set the cookie if the token is known, and redirect to the page that the browser came from."""
    form = parse_qs((await request.body())[:_FORM_BYTES].decode("utf-8", "replace"))
    token, target = form.get("token", [""])[0].strip(), own_path(form.get("next", ["/"])[0])
    tokens: Tokens | None = request.app.state.tokens
    if tokens is None or tokens.holder_of(token) is None:
        return render_page(request, "login.html", status=403, next=target, wrong=True)
    answer = RedirectResponse(f"{request.app.state.root_path}/" if target == "/" else target, 303, HEADERS)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, max_age=KEPT_S, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
def sign_out(request: Request) -> Response:
    """Delete the cookie."""
    answer = RedirectResponse(f"{request.app.state.root_path}/login", 303, HEADERS)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def own_path(target: str) -> str:
    """Return the target if it is a path of this server, else ``/``, so that no link redirects to another site.

    >>> own_path("/runs/a?x=1"), own_path("//evil.example"), own_path("https://evil.example")
    ('/runs/a?x=1', '/', '/')

    """
    is_own = target.startswith("/") and not target.startswith("//")
    # Browsers treat a backslash as a slash, and ignore control characters.
    return target if is_own and "\\" not in target and target.isprintable() else "/"


class Session:
    """ASGI middleware in front of the gate: sends the cookie's token as a bearer token, and shows the form on 401.

    Args:
        app: The gate, and the application behind it.
        root_path: The path under which a reverse proxy serves the pages; empty without one.
    """

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and redirect a person to the form if the gate refuses."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        token = _cookie(headers)
        if token is not None and "authorization" not in headers:
            given = MutableHeaders(raw=[*scope["headers"]])
            given["Authorization"] = f"Bearer {token}"
            scope = {**scope, "headers": given.raw}
        if (
            scope["method"] != "GET"
            or scope["path"].startswith("/api/")
            or "text/html" not in headers.get("accept", "")
        ):
            await self._app(scope, receive, send)
            return
        is_refused = False

        async def leading_send(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] == 401:
                is_refused = True
                query = scope["query_string"].decode("latin-1")
                # Use the raw path: decoding the escaped slash or question mark of a name would give another path.
                target = self._root_path + scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
                login = f"{self._root_path}/login?{urlencode({'next': target})}"
                await RedirectResponse(login, 303)(scope, receive, send)
            elif not is_refused:
                await send(message)

        await self._app(scope, receive, leading_send)


def _cookie(headers: Headers) -> str | None:
    for header in headers.getlist("cookie"):
        for part in header.split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE:
                return value.strip('"')
    return None

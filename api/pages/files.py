"""Serves the static files of the pages: steptape's styles and scripts, and those of the plotter."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from . import plotter

router = APIRouter(include_in_schema=False)

_STATIC: Final = Path(__file__).with_name("static")
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A static file as served, plain and compressed; ``digest`` changes with the content."""

    content: bytes
    compressed: bytes
    media_type: str
    digest: str


@router.get("/static/{name}")
def read_file(name: str, request: Request) -> Response:
    """Return a static file under its plain name. A client asks each time whether it has changed."""
    return _answer(request, name, "no-cache")


@router.get("/static/{digest}/{name}")
def read_version(digest: str, name: str, request: Request) -> Response:
    """Return a static file under an address of its version, which clients keep for good."""
    is_current = name in file_names() and digest == _version_of(name)
    return _answer(request, name, "public, max-age=31536000, immutable" if is_current else "no-cache")


def address_of(name: str) -> str:
    """Return the address of the current version of a static file."""
    return f"/static/{_version_of(name)}/{name}"


def _version_of(name: str) -> str:
    """Return the digest in a file's address: that of all own files, since scripts import each other by name."""
    return _file(name).digest if name in plotter_names() else _own_digest()


@cache
def _own_digest() -> str:
    digests = (f"{name} {_file(name).digest}\n" for name in sorted(file_names() - plotter_names()))
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:24]


def _answer(request: Request, name: str, caching: str) -> Response:
    if name not in file_names():
        raise HTTPException(404, "no such file")
    file = _file(name)
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    etag = f'"{file.digest}{"-gzip" if is_compressed else ""}"'
    headers = {"ETag": etag, "Cache-Control": caching, "X-Content-Type-Options": "nosniff", "Vary": "Accept-Encoding"}
    if etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.compressed if is_compressed else file.content, headers=headers, media_type=file.media_type)


@cache
def file_names() -> frozenset[str]:
    """Return the names that are served; a request's path is only compared with them."""
    own = {path.name for path in _STATIC.iterdir() if path.suffix in _TYPES}
    return plotter_names() | own


@cache
def plotter_names() -> frozenset[str]:
    """Return the names of the plotter's files; nothing where the build could not get them."""
    return frozenset({plotter.SCRIPT, plotter.STYLES}) if plotter.is_complete() else frozenset()


@cache
def _file(name: str) -> PageFile:
    folder = plotter.FOLDER if name in plotter_names() else _STATIC
    path = folder / name
    content = path.read_bytes()
    compressed = gzip.compress(content, mtime=0)
    return PageFile(content, compressed, _TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:24])

"""Combines the routers of all pages into one, for ``create_app``."""

from __future__ import annotations

from fastapi import APIRouter

from . import backtest as page_backtest
from . import compare as page_compare
from . import files as page_files
from . import glossary as page_glossary
from . import health as page_health
from . import login as page_login
from . import run as page_run
from . import runs as page_runs

router = APIRouter()
for room in (page_files, page_login, page_runs, page_run, page_health, page_compare, page_backtest, page_glossary):
    router.include_router(room.router)

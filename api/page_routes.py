"""The page as one router: what ``create_app`` includes."""

from __future__ import annotations

from fastapi import APIRouter

from . import page_backtest, page_compare, page_files, page_login, page_run, page_runs

router = APIRouter()
for room in (page_files, page_login, page_runs, page_run, page_compare, page_backtest):
    router.include_router(room.router)

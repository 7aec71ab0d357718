"""``/healthz``: whether the server answers and reaches its store."""

from __future__ import annotations

import os

from fastapi import APIRouter

from ..store import StoreNotFound
from .access import OpenStore
from .models import Health

router = APIRouter()


@router.get("/healthz", summary="Is the server up?")
def read_health(store: OpenStore) -> Health:
    """Answers when the server runs and can list its store; 503 when it cannot."""
    try:
        os.listdir(store.path)
    except OSError as error:
        raise StoreNotFound(f"the store cannot be listed ({error.strerror})", where=str(store.path)) from None
    return Health()

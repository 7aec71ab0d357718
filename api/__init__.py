"""HTTP over a store of runs: ``create_app`` makes the application, ``serve`` runs it on this machine.

Requests in; JSON pages and problem details (RFC 9457) out. Reads through the store only, and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.late_loading import loaded_late

if TYPE_CHECKING:
    from .app import create_app
    from .server import serve

__all__ = ["create_app", "serve"]

__getattr__ = loaded_late(__name__, {"app": ["create_app"], "server": ["serve"]})

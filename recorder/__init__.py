"""The live side: from a training loop to the journal, and decisions back."""

from __future__ import annotations

from .control import Control
from .recorder import Recorder

__all__ = ["Control", "Recorder"]

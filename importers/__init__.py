"""Past runs from other tools' logs: files in, runs of a store out.

A reader each knows one kind of source; ``steptape.importers`` is the entry point group by which others add theirs.
"""

from __future__ import annotations

from .discovery import Found, Source, find_sources, signature
from .growth import SourceRewritten
from .importing import Outcome, State, import_sources
from .registry import AUTO, GROUP, reader_of, readers, unusable_readers
from .source import Fact, ImportedRun, Reader, ReadOptions, SingleFile, UnreadableSource

__all__ = [
    "AUTO",
    "GROUP",
    "Fact",
    "Found",
    "ImportedRun",
    "Outcome",
    "ReadOptions",
    "Reader",
    "SingleFile",
    "Source",
    "SourceRewritten",
    "State",
    "UnreadableSource",
    "find_sources",
    "import_sources",
    "reader_of",
    "readers",
    "signature",
    "unusable_readers",
]

"""Asks the recorder of a running run for an operation, from outside its program."""

from __future__ import annotations

import time
from pathlib import Path

from ..annotations import REQUEST, Annotation, append_annotation, new_annotation_id
from ..errors import NotRunning
from ..journal.reading import is_being_written, is_received
from ..run_folder import list_files


def ask_recorder(folder: Path, what: str, *, author: str, reason: str = "") -> Annotation:
    """Ask the recorder of a running run for an operation, and return the note that does so.

    Args:
        folder: The run's folder.
        what: One of ``REQUESTS``.
        author: Who asks.
        reason: Why.

    Raises:
        NotRunning: No process of this machine is writing to the run.
        NotWritten: The note cannot be written.
    """
    # A writer may just have moved on to its next segment.
    journals = [journal.path for _ in range(2) for journal in list_files(folder).journals]
    written = next((path for path in journals if is_being_written(path)), None)
    if written is not None and is_received(written):
        why = f"the run was pushed here, and only the machine that trains can ask it to {what}"
        raise NotRunning(why, where=str(folder), fix="Run 'steptape stop', 'save' or 'evaluate' there")
    if written is None:
        why = f"the run is not running on this machine, so it cannot {what}"
        raise NotRunning(why, where=str(folder), fix="'steptape show RUN' says how it ended")
    note = Annotation(new_annotation_id(), time.time_ns(), reason, author, attrs={REQUEST: what})
    append_annotation(folder, note)
    return note

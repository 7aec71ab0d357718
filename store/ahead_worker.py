"""A process that reads the folders of a part of a store, for ``reading_ahead``."""

from __future__ import annotations

import contextlib
import marshal
import sys

from .folder_content import settled_content
from .run_folder import run_names


def read_share(store: str, share: int, shares: int) -> bytes:
    """What the folders of a part of a store hold: a dictionary of their names and the fields of ``FolderContent``.

    What cannot be read, or may change meanwhile, is left out: whoever asks for it reads it, and is told.

    Args:
        store: The store.
        share: Which part, from 0.
        shares: How many parts there are.
    """
    names = run_names(store)
    contents: dict[str, tuple[object, ...]] = {}
    for name in names[len(names) * share // shares : len(names) * (share + 1) // shares]:
        with contextlib.suppress(OSError):
            content = settled_content(f"{store}/{name}")
            if content is not None:
                contents[name] = tuple(content)
    return marshal.dumps(contents)


if __name__ == "__main__":
    sys.stdout.buffer.write(read_share(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

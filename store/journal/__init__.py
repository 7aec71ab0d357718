"""The append-only journal: the bytes that the recorder writes, and their readers."""

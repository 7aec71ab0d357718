"""The append-only journal: its byte format, its writer and its readers."""

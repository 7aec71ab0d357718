"""Child processes: how they start, how they talk, and how they end."""

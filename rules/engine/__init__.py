"""The engine: folds events into decisions."""

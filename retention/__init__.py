"""Decides which checkpoints and runs to keep, and deletes the others with a receipt."""

"""Computes rules as columns: over all events of a run at once, in exact agreement with the event engine."""

"""Sums up a run under a policy: what is wrong now, what was, and what cannot be known."""

"""Compares two groups of runs: which is better, by how much, and whether the evidence is enough."""

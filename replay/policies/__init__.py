"""A policy held against recorded runs: findings, coverage, and the conduct of its controllers."""

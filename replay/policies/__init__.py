"""Checks of a policy against recorded runs: findings, coverage, and the conduct of its controllers."""

"""Backtests: one policy over many runs, compared with baselines or with another policy."""

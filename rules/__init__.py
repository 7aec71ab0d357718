"""Policies (rule files) and the engine that folds events into decisions.

Pure and deterministic: nothing in this package reads a clock, a random number, the environment or the network.
"""

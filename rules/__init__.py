"""What to think of what happened: policies, and the engine that folds events into decisions.

Pure and deterministic: nothing in this room reads a clock, a random number, the environment or the network.
"""

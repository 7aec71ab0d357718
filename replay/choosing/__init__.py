"""Chooses rules with a stated risk, and states how well a choice does on runs that did not make it."""

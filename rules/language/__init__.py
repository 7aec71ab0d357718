"""The rule language: parsing, binding and the meaning of every function.

Two interpreters build on this package. ``rules/compiled`` evaluates a rule event by event; ``replay/sweeps`` evaluates
it over the columns of a run. A property test checks that the two agree.
"""

"""The rule language: texts to trees, names to readings, and the clock of a run.

Two programs walk bound rules: ``rules/compiled`` makes code that runs event by event, ``replay/columns`` evaluates over
the columns of a run. Both ask the readings of ``rules/readings``, and one test compares their answers.
"""

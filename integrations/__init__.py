"""The recorder in training frameworks: one module for each, which imports its framework alone, when it is imported."""

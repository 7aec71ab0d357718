"""The functions and operators of the rule language."""

"""The commands about stores and runs, each in a module of its own name."""

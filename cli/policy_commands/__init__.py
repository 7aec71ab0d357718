"""The commands about policies, each in a module of its own name."""

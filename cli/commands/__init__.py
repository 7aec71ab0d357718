"""The commands, each a function in a module that is imported only when it is called."""

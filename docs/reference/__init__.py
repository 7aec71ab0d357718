"""The reference documents: a package, so that they are installed with the code."""

"""What rules compute with: the table of functions, and how each is computed."""

"""What a rule asks of the record at an event: one module for each kind of reading, with all that it answers."""

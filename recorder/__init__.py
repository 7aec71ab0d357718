"""Records a training loop as a journal of events and hands rule decisions back to the loop."""

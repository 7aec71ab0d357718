"""The live side: from a training loop to the journal, and decisions back."""

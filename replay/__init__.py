"""The offline side: runs the rule engine over recorded runs. Nothing here acts on a training loop."""

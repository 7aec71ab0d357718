"""The offline side: the rule engine over past runs. Nothing here acts on anything."""

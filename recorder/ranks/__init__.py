"""How the ranks of a job know each other and agree."""

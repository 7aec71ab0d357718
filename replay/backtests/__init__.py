"""One policy over many runs, beside baselines or another policy."""

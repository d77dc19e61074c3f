"""batch → loss → run folder. Knows nothing of evaluate, inspect or serve."""

"""bytes → decode → transform → batch. Knows nothing of models or training."""

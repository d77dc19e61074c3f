"""Training: settings and data in, a trained model in a run folder out."""

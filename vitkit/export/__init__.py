"""Export a model as one file for other runtimes, and compare it with the model before it is kept."""

"""Using a trained model: predictions, exported graphs, a server and its page, all with the same answers."""

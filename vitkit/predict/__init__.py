"""Prediction with a trained model: `Classifier`, streams of files, and the engines that compute logits."""

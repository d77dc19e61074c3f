"""Checkpoints in four formats, each read and written: vitkit's own, Google's npz, timm's and Hugging Face's."""

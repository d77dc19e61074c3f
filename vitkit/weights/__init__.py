"""Weights people already have: Google's npz, timm's, Hugging Face's and our own, each read and written."""

"""Data sources: folders, manifests, arrays, shards, Hugging Face datasets, and Fashion-MNIST inside the package."""

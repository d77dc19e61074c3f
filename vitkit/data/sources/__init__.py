"""Where pictures come from: folders, manifests, arrays, shards, Hugging Face datasets, the small set inside."""

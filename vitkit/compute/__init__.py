"""Models for inference: cast, fused, quantised, captured as CUDA graphs, and their logits over a split."""

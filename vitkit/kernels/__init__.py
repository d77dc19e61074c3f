"""Fused passes for GPUs. Each stands behind a function of the model with a plain twin, which tests hold it equal to."""

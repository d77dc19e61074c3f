"""Triton kernels with plain PyTorch twins, and `fuse(model)`, which puts them into a model from outside."""

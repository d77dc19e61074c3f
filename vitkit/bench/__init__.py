"""Benchmarks on this machine: speed, share of the hardware's peak, memory."""

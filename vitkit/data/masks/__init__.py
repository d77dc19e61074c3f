"""Masks: a class number for each pixel, read from the files that people have."""

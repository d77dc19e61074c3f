"""Score models on data: accuracy with intervals, per-class scores, calibration, mistakes, and probes of features."""

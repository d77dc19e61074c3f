"""How a model's numbers are computed where answers alone are wanted: narrower, in fewer passes over memory."""

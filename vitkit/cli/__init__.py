"""The verbs: a function each, whose signature is its options and whose docstring is its help."""

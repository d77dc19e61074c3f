"""The verbs of the command line: one function each, whose signature is its options and whose docstring its help."""

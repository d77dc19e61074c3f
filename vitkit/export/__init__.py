"""`vitkit export`: a model as one file for other runtimes, compared before it is kept."""

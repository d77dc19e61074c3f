"""How good a model is: answers counted over pictures, with intervals, class by class, and what went wrong."""

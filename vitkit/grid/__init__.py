"""Comparisons: arms times seeds as ordinary runs, paired intervals, verdicts, a table and a page."""

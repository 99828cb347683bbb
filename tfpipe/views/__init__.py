"""Views of a dataset: which records a condition chooses, and how often each is read."""

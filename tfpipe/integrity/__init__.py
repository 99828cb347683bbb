"""Checks whether a dataset is intact, and saves every undamaged record of one that is not."""

"""Loads the manifest of a dataset from a path or URL, with its layers, columns and views."""

"""Finds the records of a TFRecord file that is damaged or has no index."""

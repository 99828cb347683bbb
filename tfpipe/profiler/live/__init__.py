"""Measures the idle time of a training while it runs."""

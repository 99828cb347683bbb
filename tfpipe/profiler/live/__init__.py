"""Measuring the idle time of a training that runs."""

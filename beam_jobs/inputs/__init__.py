"""Folders, archives, tables and finished datasets as inputs of a job: listed at once, read image by image."""

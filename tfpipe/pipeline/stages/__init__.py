"""The operations of the textbook pipeline, which `textbook.py` puts in order."""

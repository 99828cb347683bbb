"""The operations of the textbook pipeline, which `textbook.py` puts in order.

An element is a record up to `parse`, a dictionary of features up to `batch`, with the image once it is decoded, and
then a batch.
"""

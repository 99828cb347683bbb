"""Columns: features that are added to the records of a finished dataset, without a changed byte of its shards.

A column is written in a working folder, gets its name by one renaming, and is there once the catalog names it.
"""

"""Columns: features that are added to the records of a finished dataset, without a changed byte of its shards."""

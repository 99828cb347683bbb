"""Layers: data that is appended to a finished dataset or hidden in it, without a change of its shards."""

"""Layers: what is appended to a finished dataset or hidden in it, without a changed byte of its shards."""

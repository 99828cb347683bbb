"""The output directory: the plan file, the shards with their indexes, and the manifest that is written last."""

"""The output directory: the plan file, the shards with their indexes, and the manifest, which is written last."""

"""The reference trainer, which makes a served model from shards."""

"""The reference trainer: from shards to a served model."""

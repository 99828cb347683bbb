"""The plan of a job: which images there are, and which shard each goes into. Pure functions of values."""

"""Lookups: the records of any step, past or to come, and the steps at which a record is read."""

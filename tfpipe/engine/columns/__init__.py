"""The arrays of a batch, made of stored values: one module for each kind of feature."""

"""Writes datasets of any records, from Python: `write`, with the kinds of `fields`. No Beam, no TensorFlow."""

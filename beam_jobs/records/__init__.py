"""Writes the records that a user's own Beam pipeline makes: `WriteRecords`. No TensorFlow."""

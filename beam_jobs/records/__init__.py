"""Reads and writes the records of a user's own Beam pipeline: `ReadRecords`, `WriteRecords`. No TensorFlow."""

"""The read plan: which records one host reads, in which order and batches. Loads no TensorFlow."""

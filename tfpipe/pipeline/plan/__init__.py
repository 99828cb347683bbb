"""The read plan: the records that one host reads, their order and their batches. It loads no TensorFlow."""

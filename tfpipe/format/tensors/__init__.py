"""Tensors in records: their type, their bytes, TensorFlow's protocol buffer of one, and the numbers about many."""

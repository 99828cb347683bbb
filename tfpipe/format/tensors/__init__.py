"""Tensors in records: their type, their bytes, TensorFlow's protocol buffer of one; numbers about them and masks."""

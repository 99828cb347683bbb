"""Tensors in records: their type, their bytes and TensorFlow's `TensorProto`; statistics of tensors and masks."""

"""The reference trainer in PyTorch: its step, model and export. It loads no TensorFlow."""

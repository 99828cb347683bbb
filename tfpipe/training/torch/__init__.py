"""The reference trainer in PyTorch: its step, model, checkpoints and export. It loads no TensorFlow."""

"""The reference trainer in JAX: its step, model, checkpoints and export. It loads no TensorFlow."""

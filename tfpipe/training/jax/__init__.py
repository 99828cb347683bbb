"""The reference trainer in JAX: its step, model and export. It loads no TensorFlow."""

"""Files by path or URL: those of this machine, of object stores, of Hugging Face, and what TensorFlow reads."""

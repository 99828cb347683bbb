"""Keeps TensorFlow's log out of the tests of this folder; their helpers are `images`, `datasets` and `commands`."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

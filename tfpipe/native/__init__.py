"""Calls into C that hold no lock of Python's: crops of JPEGs, records of TFRecord files, and whole batches of both.

```
jpeg.decode(data, (16, 40, 300, 280), image, flip=True)      # a crop, resized and mirrored
whole = records.read_records(spans, frames, block)           # many records, read and checked
batches.decode(addresses, boxes, flips, images, threads=4)   # the images of a batch
```

The sources lie in `csrc/`; `hatch_build.py` compiles them into the package while it is installed. These modules open
the library, `libtfpipe_native.so`, by ctypes when one of their functions is called first.
"""

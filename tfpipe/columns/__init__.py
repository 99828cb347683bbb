"""Columns: features that are added to the records of a finished dataset, without a changed byte of its shards.

```
flowers/
  train-00003-of-00008.tfrecord
  columns/captions/train-00003-of-00008.tfrecord      the captions of the same records, in the same order
  columns/captions/index/, manifest.json              as of a dataset, with the fingerprints of the splits it stands on
```

A column is written in a working folder and gets its name by one renaming, so it is there as a whole or not at all.
"""

"""Columns: features that are added to the records of a finished dataset, without a changed byte of its shards.

```
flowers/
  train-00003-of-00008.tfrecord
  columns/captions-90ab34cd12ef/train-00003-of-00008.tfrecord   the captions of the same records, in the same order
  columns/captions-90ab34cd12ef/index/, manifest.json           as of a dataset, with the fingerprints of its splits
```

A column is written in a working folder, gets its name by one renaming, and is there once the catalog names it.
"""

"""Layers: what is appended to a finished dataset, hidden in it, or taken back, without a changed byte of its shards.

```
delete.py      records hidden by their names
rollback.py    back to the state of an older layer
log.py         the layers as a table
compact.py     the same records as one layer, without the bytes of those that are hidden
repeated.py    how many appended images were there before
diff.py        what two datasets, layers or views have different
```
"""

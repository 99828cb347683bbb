"""Object stores: one `Store` for `gs://`, `s3://` and `az://`, by obstore.

store = Store("gs")
store.check("gs://data/photos")                    # one sentence if the bucket cannot be used
with store.create("gs://data/out/shard") as file:  # appears when the block ends well
file.write(payload)
store.read("gs://data/out/shard", offset=16, size=100)
"""

"""The URLs of objects: `gs://bucket/a/b` is the object `a/b` of a bucket."""


def split_url(url: str) -> tuple[str, str]:
    """Splits `gs://bucket/a/b` into `bucket` and `a/b`."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def get_bucket_url(url: str) -> str:
    """Returns `gs://bucket` for `gs://bucket/a/b`."""
    return url[: url.index("://") + 3] + split_url(url)[0]

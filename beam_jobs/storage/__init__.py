"""The file systems of a job: local files, Google Cloud Storage, S3, and every other one that Beam knows."""

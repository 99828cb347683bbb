"""The file systems that a job reads from and writes to: local files, Google Cloud Storage, S3 and what Beam reaches."""

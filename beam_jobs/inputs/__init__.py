"""What a job reads: folders, archives, tables and finished datasets, listed and read image by image."""

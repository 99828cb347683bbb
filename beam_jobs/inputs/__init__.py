"""The inputs of a job, which are folders, archives, tables or datasets: first listed, then read image by image."""

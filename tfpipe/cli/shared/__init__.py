"""What several commands share: parameter types, progress, opening of datasets, output files."""

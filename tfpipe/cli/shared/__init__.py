"""Code that several commands share: parameter types, displays, opening of datasets, output files."""

"""The command line: one file per command; each reads options, calls the library and renders what comes back."""

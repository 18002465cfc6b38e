"""The command line: one file per verb. Nothing else in the package imports it."""

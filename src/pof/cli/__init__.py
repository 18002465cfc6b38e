"""The command line: one file a verb. Nothing outside imports it."""

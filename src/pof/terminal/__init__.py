"""What is printed in a terminal: one table, one progress bar."""

"""What is printed in a terminal: text tables and progress bars."""

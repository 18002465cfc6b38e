"""Training from recipes: one loop, every method, resumable, on one process or many."""

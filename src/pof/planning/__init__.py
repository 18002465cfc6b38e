"""Which weights of a model are pruned: the table of layer kinds, names and globs, tied weights, and refusals."""

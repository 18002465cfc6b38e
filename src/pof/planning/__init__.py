"""Which weights of a model are pruned: one table of layer kinds, names and globs, tied weights, refusals."""

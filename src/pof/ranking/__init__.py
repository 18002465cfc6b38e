"""Pure tensors: magnitudes and their order, cuts, shares across layers, recovery. Nothing here knows about modules."""

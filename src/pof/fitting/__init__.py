"""Fitting a pretrained network to a few unlabelled inputs, so that it can be pruned to any sparsity."""

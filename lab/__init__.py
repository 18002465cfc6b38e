"""The laboratory: the paper's tables reproduced, experiments, their records and weights. Not part of the package."""

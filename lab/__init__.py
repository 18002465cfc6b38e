"""The laboratory: the paper's tables made again, experiments, their records and weights. Not part of the package."""

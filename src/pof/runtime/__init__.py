"""Turn a model into a program and run it, so that unstructured sparsity is faster on a CPU."""

"""From a model to a program, and the engines that run it: unstructured sparsity that is faster on a CPU."""

"""The `.pof` file: one small file that holds a network at every sparsity. SPEC.md describes every byte of it.

`pof_file` opens a file, `loading` fills a model from it, `writing` writes one. The head can be read without torch.
"""

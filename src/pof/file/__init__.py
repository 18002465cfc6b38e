"""The `.pof` file: one small file that holds a network at every sparsity. SPEC.md says what is in it, byte by byte.

`pof_file` opens one, `loading` fills a model from it, `writing` writes one; a head can be read without torch.
"""

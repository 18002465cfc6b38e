"""The `.pof` file: one small file that holds a network at every sparsity. SPEC.md says what is in it, byte by byte."""

from pof.file.read import PofFile, load, open
from pof.file.write import save, save_state_dict

__all__ = ["PofFile", "load", "open", "save", "save_state_dict"]

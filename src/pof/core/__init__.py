"""The compiled core: kernels and codecs in C, and how Python finds and calls them."""

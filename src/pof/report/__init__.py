"""Tables and plots, made from figures that were measured elsewhere."""

"""A live model in any state: pruned, recovered, restored, held; its statistics; the search for a state that fits."""

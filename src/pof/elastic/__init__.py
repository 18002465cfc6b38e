"""A live model in any state: pruning, recovery, restoring, held zeros, statistics, and the search for a state."""

"""From the numbers of a pair to its verdict."""

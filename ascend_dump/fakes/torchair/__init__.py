"""Stand-ins for torchair: the package, and its native module alone."""

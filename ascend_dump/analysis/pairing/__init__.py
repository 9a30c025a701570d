"""Which operator of one dump is which of the other."""

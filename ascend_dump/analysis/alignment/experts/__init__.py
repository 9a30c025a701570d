"""Follow tokens through the experts of a model, where each expert has the rows of some tokens."""

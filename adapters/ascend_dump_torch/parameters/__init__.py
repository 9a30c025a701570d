"""The parameters of a model while it is trained."""

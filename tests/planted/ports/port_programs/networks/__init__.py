"""One module a network: the reference, the port, and the truth of each fault."""

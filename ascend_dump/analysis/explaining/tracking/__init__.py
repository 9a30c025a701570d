"""State of the walk over one rank: differences, arguments, updates and parameters of earlier operators."""

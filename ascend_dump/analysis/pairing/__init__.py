"""Pairs of operators: the operators of two dumps that are the same in the program."""

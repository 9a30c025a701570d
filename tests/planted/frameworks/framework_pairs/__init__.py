"""Pairs of programs of one network in two frameworks."""

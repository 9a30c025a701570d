"""Relate the tensors of one of several ranks to those of a program on fewer ranks."""

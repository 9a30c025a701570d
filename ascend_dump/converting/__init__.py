"""Dump files as arrays that every tool reads: npy, npz, bin, txt and csv."""

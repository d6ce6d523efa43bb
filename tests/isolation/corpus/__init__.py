"""Kernels of the kinds that people have, and what to compile of each."""

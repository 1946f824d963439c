"""Comparisons of methods under one protocol."""

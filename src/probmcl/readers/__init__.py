"""Readers of data formats, one module per format."""

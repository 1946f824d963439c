"""Heads on an encoder's feature maps: attention over positions, transformers, decoders, graphs of the labels."""

"""Heads on the feature maps of an encoder: attention pooling, transformers, decoders and label graphs."""

"""Duplicate detection: fingerprints of the images, candidate pairs, and registration to confirm them."""

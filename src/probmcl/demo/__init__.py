"""The demo: scenes of handwritten digits, and methods trained on them."""

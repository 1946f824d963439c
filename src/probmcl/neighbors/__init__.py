"""Features of the training images, to find those that are most similar to an image."""

from probmcl.neighbors.training_images import TrainingImages

__all__ = ["TrainingImages"]

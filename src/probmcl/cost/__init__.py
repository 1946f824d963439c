"""The cost of a method before training: parameters and multiply-adds from shapes, and measured time and memory."""

"""The cost of a method before training: computed parameters and multiply-adds, and measured time and memory."""

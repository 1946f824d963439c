"""Starting and resuming runs and comparisons, from the options of `train` and `compare` to the result."""

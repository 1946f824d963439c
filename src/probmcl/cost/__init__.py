"""The cost of a method before training: parameters and multiply-adds from shapes; time and memory, if measured."""

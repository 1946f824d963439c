"""The folder of a run or a comparison: the names of its files, their content, and their checksums."""

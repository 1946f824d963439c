"""The table reader: finds the columns and the image files, reads the labels, and refuses ambiguous tables."""

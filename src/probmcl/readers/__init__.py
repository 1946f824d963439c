"""Readers of data formats, one module per format: from files to records.

Importing this package loads no other library.
"""

from probmcl.readers.options import DataChecks, ReadOptions
from probmcl.readers.read import read

__all__ = ["DataChecks", "ReadOptions", "read"]

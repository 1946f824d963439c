"""Names of files that the system accepts."""

import re
import sys

NOT_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
"""Characters that a file name cannot have on Windows. The colon would name a hidden stream of another file."""

DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)\s*(\..*)?", re.IGNORECASE)
"""Names that stand for a device on Windows, with any suffix."""


def file_name(name: str) -> str:
    """Return a name as part of a file name. It changes only on Windows, where some characters are not allowed.

    The name of a method, for example, may be `probmcl:paper`.
    """
    if sys.platform != "win32":
        return name
    name = NOT_ON_WINDOWS.sub("-", name).rstrip(". ")
    return f"-{name}" if DEVICE.fullmatch(name) else name

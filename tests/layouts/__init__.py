"""Forms in which users have their data. A new layout is one entry in one of these lists and a row of the docs."""

from layouts.annotation_tools import TOOLS
from layouts.class_columns import CLASS_COLUMNS
from layouts.file_types import FILES
from layouts.layout import Layout
from layouts.lists import LISTS
from layouts.paths import PATHS
from layouts.rows import ROWS
from layouts.splits import SPLITS

LAYOUTS = {layout.id: layout for layout in (*LISTS, *CLASS_COLUMNS, *ROWS, *PATHS, *SPLITS, *FILES, *TOOLS)}

__all__ = ["LAYOUTS", "Layout"]

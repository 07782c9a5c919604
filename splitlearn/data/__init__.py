"""Files and hubs as tables on disk, mapped into memory, through the datasets library.

Knows formats, never columns: what a row has to look like is for whoever trains on it. Never logs or
draws anything, for that would quote rows.
"""

from splitlearn.data.tables import open_table

__all__ = ["open_table"]

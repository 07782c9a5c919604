"""Train one language model across organisations; private text and labels stay at home.

Importing this package imports no torch: `load_merged` is fetched when it is first asked for.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitlearn.split import load_merged

__all__ = ["__version__", "load_merged"]

__version__ = version("splitlearn")


def __getattr__(name: str) -> object:
    if name == "load_merged":
        from splitlearn.split import load_merged

        return load_merged
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Which flwr this is written for. Its internals are read here and change without notice."""

from importlib.metadata import PackageNotFoundError, version

from splitlearn.errors import ManifestError

__all__ = ["FLOWER", "check_version"]

FLOWER = "1.42."


def check_version() -> str:
    """The installed flwr's version. Raises ManifestError if it is missing or another one than ours."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ManifestError(
            "Flower is not installed; run: pip install 'splitlearn[pretrain]'"
        ) from None
    if not found.startswith(FLOWER):
        raise ManifestError(
            f"Flower is {found}; this needs {FLOWER}x; run: pip install 'flwr=={FLOWER}*'"
        )
    return found

"""Where Flower keeps its things, and how it is told to keep quiet: no telemetry, no update check.

Everything lies in one folder of ours (0700). Flower reads these settings when it is imported, and its
child processes inherit them, so they are set before either happens.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from splitlearn.identity import files

__all__ = ["at_home", "point_flwr", "settings"]


def settings(home: Path) -> dict[str, str]:
    """Environment of a process that runs Flower with `home` as its folder."""
    # Its commands (flower-superexec, ...) lie beside our interpreter, whatever PATH says.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_TELEMETRY_LOGGING": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOG_LEVEL": os.environ.get("FLWR_LOG_LEVEL", "WARNING"),
        "PATH": path,
    }


def point_flwr(home: Path, *, address: str) -> None:
    """Have the flwr command, run with FLWR_HOME=`home`, find the SuperLink at `address` on loopback."""
    lines = ("[superlink]", 'default = "here"', "[superlink.here]", f'address = "{address}"')
    text = "\n".join((*lines, "insecure = true", ""))
    files.write(home / "config.toml", text.encode())


@contextmanager
def at_home(home: Path) -> Iterator[None]:
    """Set this process's environment for Flower while the block runs. Raises ManifestError."""
    files.make_folder(home)
    with _environment(settings(home)):
        yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""Puts a pinned uv into .uv/, for machines that have python3 and a network to PyPI, but no uv.

Uses python3's own pip where there is one. Debian and Ubuntu ship python3 without pip and without
what `python3 -m venv` needs; there a pinned pip wheel, checked against its digest, does the work.
With --python it only prints the interpreter, or says that it is too old. Standard library only.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

UV = "uv==0.13.9"
FOLDER = Path(".uv")
PIP_URL = (
    "https://files.pythonhosted.org/packages/70/7a/"
    "be4bd8bcbb24ea475856dd68159d78b03b2bb53dae369f69c9606b8888f5/pip-26.1-py3-none-any.whl"
)
PIP_SHA256 = "4e8486d821d814b77319acb7b9e8bf5a4ee7590a643e7cb21029f209be8573c1"
INSTALL = ["install", "--disable-pip-version-check", "--upgrade", "--target", str(FOLDER), UV]


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036, this is where an older one is told so
        sys.exit(
            f"{sys.executable} is Python {sys.version.split()[0]}; splitlearn needs 3.11 or later: "
            "make PYTHON=/path/to/python3.11"
        )
    if sys.argv[1:] == ["--python"]:
        sys.stdout.write(sys.executable + "\n")
        return
    if _run([sys.executable, "-m", "pip", "--version"], quiet=True) != 0:
        _install_with_wheel()
    elif _run([sys.executable, "-m", "pip", *INSTALL]) != 0:
        sys.exit(f"pip could not install {UV}; is there a network to PyPI?")


def _install_with_wheel() -> None:
    with urllib.request.urlopen(PIP_URL, timeout=60) as answer:
        wheel = answer.read()
    if hashlib.sha256(wheel).hexdigest() != PIP_SHA256:
        sys.exit(f"{PIP_URL} is not the file that was expected; nothing was installed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pip-26.1-py3-none-any.whl"
        path.write_bytes(wheel)
        # A wheel is a zip file, and pip runs from inside its own.
        if _run([sys.executable, str(path / "pip"), *INSTALL]) != 0:
            sys.exit(f"pip could not install {UV}; is there a network to PyPI?")


def _run(command: list[str], *, quiet: bool = False) -> int:
    where = subprocess.DEVNULL if quiet else None
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
    return subprocess.run(
        command, stdout=where, stderr=where, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    main()

"""The room's face: everything it names is there, and looking at it is cheap."""

import subprocess
import sys

from splitlearn import wire


def test_face_names_what_it_has() -> None:
    assert all(hasattr(wire, name) for name in wire.__all__)
    assert (
        sorted(wire.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
        == wire.__all__
    )


def test_importing_the_room_loads_no_heavy_library() -> None:
    code = "import sys, splitlearn.wire; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert not {"torch", "numpy", "grpc", "transformers", "cryptography"} & set(out.split())

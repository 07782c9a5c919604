import subprocess
import sys
from pathlib import Path

import pytest

from splitlearn.coordination.claims import claimed, held
from splitlearn.errors import ManifestError

PROGRAM = """
import sys
from pathlib import Path
from splitlearn.coordination.claims import claimed
with claimed(Path(sys.argv[1]), otherwise="no"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_claim_is_held_against_everybody_else_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    assert not held(path)
    with claimed(path, otherwise="somebody has it"):
        assert held(path)
        with (
            pytest.raises(ManifestError, match="somebody has it"),
            claimed(path, otherwise="somebody has it"),
        ):
            raise AssertionError
        assert held(path)
    assert not held(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert held(path)
        holder.kill()
        holder.wait()
    assert not held(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ManifestError, match="cannot be opened"),
        claimed(tmp_path / "none" / "claim", otherwise=""),
    ):
        raise AssertionError

import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.pretrain.permutation import Permutation, new_key, read_key, write_key

KEY = bytes(range(32))
SPECIAL = frozenset({0, 1, 2, 3, 4})


@given(st.binary(min_size=32, max_size=32), st.integers(6, 300))
def test_ids_are_renamed_one_to_one_and_back_and_special_ones_stay(key: bytes, size: int) -> None:
    permutation = Permutation(key, size=size, special=SPECIAL)
    ids = np.arange(size, dtype=np.int32)
    named = permutation.permute(ids)
    assert sorted(named.tolist()) == ids.tolist()
    assert named.dtype == np.int32
    assert permutation.inverse(named).tolist() == ids.tolist()
    assert all(named[number] == number for number in SPECIAL)


def test_another_key_gives_other_names_and_the_same_key_the_same() -> None:
    ids = np.arange(1000, dtype=np.int32)
    first = Permutation(KEY, size=1000, special=SPECIAL).permute(ids)
    again = Permutation(KEY, size=1000, special=SPECIAL).permute(ids)
    other = Permutation(KEY[::-1], size=1000, special=SPECIAL).permute(ids)
    assert first.tolist() == again.tolist()
    # A uniform shuffle leaves about one of a thousand where it was.
    assert (first == ids).sum() < 15
    assert (first == other).sum() < 15


def test_a_key_lies_in_a_file_of_its_owner_and_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = new_key()
    write_key(key, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path) == key
    with pytest.raises(ManifestError, match="not written over"):
        write_key(key, path)
    with pytest.raises(ManifestError, match="cannot be written"):
        write_key(key, tmp_path / "none" / "key")


def test_what_is_no_key_is_refused_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ManifestError, match="cannot be read"):
        read_key(path)
    path.write_text("secret" * 1000)
    path.chmod(0o600)
    with pytest.raises(ManifestError, match="splitlearn vocab key") as caught:
        read_key(path)
    assert "secret" not in str(caught.value)
    path.chmod(0o644)
    with pytest.raises(ManifestError, match="chmod 600"):
        read_key(path)
    with pytest.raises(ManifestError, match="32 bytes, and this has 5"):
        Permutation(b"short", size=10, special=SPECIAL)

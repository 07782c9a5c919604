from pathlib import Path

import pytest


@pytest.fixture
def all_else_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two rooms, 0 and 1, with the same keys of logs, and the same numbers for conversations."""
    monkeypatch.setattr("secrets.token_hex", lambda count: "5" * 2 * count)
    for shift in (0, 1):
        for party in ("clinic", "gpuhost"):
            (tmp_path / str(shift) / party).mkdir(parents=True)
            (tmp_path / str(shift) / party / "key").write_bytes(party[:1].encode() * 32)
    return tmp_path

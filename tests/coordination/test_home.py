import os
import sys
from pathlib import Path

import pytest

from splitlearn.coordination.home import at_home, point_flwr, settings


def test_flower_is_told_to_keep_quiet_and_where_to_live(tmp_path: Path) -> None:
    told = settings(tmp_path)
    assert told["FLWR_HOME"] == str(tmp_path)
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert told["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert told["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_the_environment_is_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_LOG_LEVEL", "ERROR")
    before = dict(os.environ)
    with at_home(tmp_path / "home"):
        assert os.environ["FLWR_HOME"] == str(tmp_path / "home")
        assert os.environ["FLWR_LOG_LEVEL"] == "ERROR"
    assert dict(os.environ) == before
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_flower_reads_those_very_names() -> None:
    from flwr.common.constant import (
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION,
        FLWR_HOME,
    )
    from flwr.supercore.constant import FLWR_DISABLE_UPDATE_CHECK

    told = settings(Path())
    assert {
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION,
        FLWR_HOME,
        FLWR_DISABLE_UPDATE_CHECK,
    } <= told.keys()


def test_the_flwr_command_is_pointed_to_the_local_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.cli.flower_config import read_superlink_connection

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    point_flwr(tmp_path, address="127.0.0.1:8472")
    found = read_superlink_connection(None)
    assert (found.address, found.insecure) == ("127.0.0.1:8472", True)
    assert (tmp_path / "config.toml").stat().st_mode & 0o777 == 0o600

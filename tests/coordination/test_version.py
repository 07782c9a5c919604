import importlib.metadata

import pytest

from splitlearn.coordination import FLOWER, check_version, version
from splitlearn.errors import ManifestError


def test_the_installed_flower_is_the_one_that_this_is_written_for() -> None:
    assert check_version().startswith(FLOWER)


def test_another_flower_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "version", lambda _: "1.43.0")
    with pytest.raises(ManifestError, match=r"Flower is 1\.43\.0; this needs 1\.42"):
        check_version()


def test_a_missing_flower_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    with pytest.raises(ManifestError, match=r"splitlearn\[pretrain\]"):
        check_version()

import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.coordination import fab
from splitlearn.coordination.fab import build_fab, check_fab
from splitlearn.errors import PeerError

APP = Path(fab.__file__).parent / "app"
ROOT = Path(__file__).parents[2]


def test_our_bundle_is_small_carries_no_code_and_is_the_same_every_time() -> None:
    bundle = build_fab()
    assert bundle == build_fab()
    assert len(bundle.content) < 8 * 2**10
    names = zipfile.ZipFile(io.BytesIO(bundle.content)).namelist()
    assert sorted(names) == [".info/CONTENT", "LICENSE", "pyproject.toml"]
    check_fab(bundle.content)


def test_flower_itself_takes_our_bundle_for_one(tmp_path: Path) -> None:
    from flwr.cli.install import install_from_fab
    from flwr.common.config import validate_config

    found = install_from_fab(build_fab().content, install_dir=tmp_path, skip_prompt=True)
    project = tomllib.loads((found / "pyproject.toml").read_text(encoding="utf-8"))
    assert validate_config(project, check_module=True, project_dir=found) == (True, [], [])


def test_the_apps_that_it_names_are_there() -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.supercore.object_ref import load_app

    project = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    named = project["tool"]["flwr"]["app"]["components"]
    assert isinstance(load_app(named["serverapp"], ValueError, APP), ServerApp)
    assert isinstance(load_app(named["clientapp"], ValueError, APP), ClientApp)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
@pytest.mark.parametrize("folder", [APP, ROOT])
def test_what_flwr_run_makes_of_the_folder_is_taken_too(folder: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    check_fab(build_fab_from_disk(folder))


def bundle(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_toml", ".toml"), data)
    return buffer.getvalue()


PROJECT = (APP / "pyproject.toml").read_bytes()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bundle(pyproject_toml=PROJECT, parties__generator=b"import os"), "other files"),
        (bundle(pyproject_toml=PROJECT.replace(b"parties.gen", b"evil.gen")), "other apps"),
        (bundle(pyproject_toml=PROJECT + b'python = "x"\n'), "other apps or settings"),
        (bundle(pyproject_toml=b"[tool]"), "not a bundle"),
        (bundle(pyproject_toml=b"\xff"), "not a bundle"),
        (bundle(pyproject_toml=b"tool = 1"), "not a bundle"),
        (bundle(LICENSE=b""), "not a bundle"),
        (bundle(pyproject_toml=b"#" * 2**17), "not a bundle|bytes long"),
        (b"PK", "not a bundle"),
        (b"x" * (fab.MAX_FAB_BYTES + 1), "bytes long"),
    ],
)
def test_every_other_bundle_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        check_fab(content)


@given(st.data())
def test_a_damaged_bundle_is_ours_or_refused(data: st.DataObject) -> None:
    raw = bytearray(build_fab().content)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_fab(bytes(raw))
    except PeerError:
        return


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 97)], ids=["encrypted", "unknown packing"])
def test_a_bundle_that_zipfile_will_not_open_is_refused(at: int, value: int) -> None:
    raw = bytearray(bundle(pyproject_toml=PROJECT))
    central = raw.index(b"PK\x01\x02")
    raw[at] = raw[central + at + 2] = value
    with pytest.raises(PeerError, match="not a bundle"):
        check_fab(bytes(raw))


def test_a_bundle_that_swells_when_unpacked_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pyproject.toml", b"#" * 2**20)
    assert len(buffer.getvalue()) < fab.MAX_FAB_BYTES
    with pytest.raises(PeerError, match="not a bundle"):
        check_fab(buffer.getvalue())

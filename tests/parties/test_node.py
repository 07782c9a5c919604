from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties import node
from splitlearn.coordination.supernode import SuperNode
from splitlearn.errors import ManifestError
from splitlearn.identity import Identity, Registrar, invite
from splitlearn.roles import Role
from tests.federation import make_authority
from tests.tongues import tongues


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(node.app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_joining_as_a_generator_makes_an_identity_and_says_what_comes_next(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    folder = tmp_path / "anna"
    with Registrar(authority.folder, port=0) as registrar:
        token = invite(authority.folder, party="anna", role=Role.GENERATOR)
        code, said = run("join", token, "--registrar", registrar.address, "--folder", str(folder))
        assert code == 0
        assert "joined as spiffe://fed.example/party/anna/role/generator" in said
        assert "next: splitlearn generator run" in said
        assert Identity.load(folder).name.role is Role.GENERATOR
        token = invite(authority.folder, party="gpu", role=Role.COMPUTE)
        with pytest.raises(ManifestError, match="needs a token of splitlearn federation invite"):
            run("join", token, "--registrar", registrar.address, "--folder", str(tmp_path / "gpu"))


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tongues(tmp_path, {"anna": "aa"}).generators["anna"]


def test_one_folder_is_one_generators(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(settings.read_text())

    def second(self: SuperNode) -> None:
        with pytest.raises(ManifestError, match="another generator runs in"):
            run("run", str(other), "--state", str(self.folder))

    monkeypatch.setattr(SuperNode, "run", second)
    assert run("run", str(settings))[0] == 0


def test_ctrl_c_ends_a_waiting_node_with_its_code(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: SuperNode) -> None:
        assert self.folder == settings.parent / ".anna-node"
        assert self.settings == settings
        self.report("one line")
        raise KeyboardInterrupt

    monkeypatch.setattr(SuperNode, "run", interrupted)
    code, said = run("run", str(settings))
    assert code == 130
    assert said == "one line\ngenerator stopped; start it again to go on\n"


def test_settings_that_name_no_coordinator_are_refused(settings: Path) -> None:
    text = settings.read_text()
    settings.write_text(text.replace('address = "127.0.0.1:1"', ""))
    with pytest.raises(ManifestError, match=r"coordinator\.address is missing"):
        run("run", str(settings))

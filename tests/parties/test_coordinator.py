import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties import coordinator
from splitlearn.errors import ChannelError, ManifestError
from splitlearn.identity import Registrar
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity


def run(*arguments: str) -> None:
    result = CliRunner().invoke(coordinator.app, arguments)
    if result.exception is not None:
        raise result.exception
    raise AssertionError(result.output)


def test_a_coordinator_needs_an_identity_of_its_role(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds no certificate"):
        run("up", "--folder", str(tmp_path))
    gpu = make_identity(tmp_path, "gpu", Role.COMPUTE)
    with pytest.raises(ManifestError, match="needs the role discriminator"):
        run("up", "--folder", str(gpu.folder), "--state", str(tmp_path / "state"))


def test_a_port_in_use_is_named_and_the_registrar_it_served_is_gone_again(tmp_path: Path) -> None:
    trainer = make_identity(tmp_path, "trainer", Role.DISCRIMINATOR)
    authority = make_authority(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        with pytest.raises(ManifestError, match="coordinator cannot listen"):
            run(
                *("up", "--folder", str(trainer.folder), "--state", str(tmp_path / "state")),
                *("--federation", str(authority.folder), "--registrar-port", str(port)),
                *("--port", str(taken.getsockname()[1]), "--control-port", "0"),
            )
        with Registrar(authority.folder, port=port):
            assert authority.open(authority.folder).registrar == f"127.0.0.1:{port}"


def test_listing_nodes_without_a_coordinator_says_what_to_start() -> None:
    with pytest.raises(ChannelError, match="start splitlearn coordinator up"):
        run("nodes", "--address", "127.0.0.1:1")


def test_the_same_line_is_said_once_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    say = coordinator._Once()
    for line in ("a", "a", "b", "a"):
        say(line)
    assert capsys.readouterr().err == "a\nb\na\n"

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parties import federation
from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import Authority, Identity, Registrar, create_federation
from splitlearn.roles import Role

app = typer.Typer()
app.add_typer(federation.app, name="federation")
app.command("join")(federation.join)
app.command("request")(federation.request)
app.command("install")(federation.install)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def address(here: Path) -> Iterator[str]:
    create_federation(Path("federation"), name="fed.example")
    with Registrar(Path("federation"), port=0) as registrar:
        yield registrar.address


def run(*arguments: str, answer: str | None = None) -> tuple[str, str]:
    """Standard output and standard error of a command that ends well."""
    result = CliRunner().invoke(app, arguments, input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_a_federation_is_founded_and_says_its_fingerprint() -> None:
    _, told = run("federation", "create", "fed.example")
    assert Authority.open(Path("federation")).pin in told


def test_an_invitation_is_a_token_alone_on_standard_output(address: str) -> None:
    token, told = run("federation", "invite", "--party", "bank", "--role", "compute")
    assert len(token.strip().split(".")) == 4
    assert f"--registrar {address}" in told
    assert token.strip() not in told


def test_a_token_from_the_command_line_joins_from_the_command_line(address: str) -> None:
    token, _ = run("federation", "invite", "--party", "bank", "--role", "compute")
    _, told = run("join", token.strip(), "--registrar", address, "--folder", "mine")
    assert "joined as spiffe://fed.example/party/bank/role/compute" in told
    assert Identity.load(Path("mine")).name.role is Role.COMPUTE
    with pytest.raises(IdentityError, match=r"was used"):
        run("join", token.strip(), "--registrar", address, "--folder", "other")


def test_before_it_ever_served_an_invitation_names_no_address() -> None:
    run("federation", "create", "fed.example")
    _, told = run("federation", "invite", "--party", "bank", "--role", "compute", "--hours", "2")
    assert "--registrar HOST:PORT" in told
    assert "good for 2 h" in told


def test_a_request_goes_by_hand_and_comes_back() -> None:
    run("federation", "create", "fed.example")
    run("request", "--party", "bank", "--role", "compute", "--federation", "fed.example")
    asked = "identity/bank-compute.request.json"
    _, told = run("federation", "approve", asked, answer="y\n")
    assert "certify spiffe://fed.example/party/bank/role/compute?" in told
    pin = Authority.open(Path("federation")).pin
    assert f"--pin {pin}" in told
    given = "identity/bank-compute.certificate.json"
    _, told = run("install", given)
    assert pin in told
    _, told = run("install", given, "--pin", pin)
    assert pin not in told


def test_nothing_is_certified_without_a_yes() -> None:
    run("federation", "create", "fed.example")
    run("request", "--party", "bank", "--role", "compute", "--federation", "fed.example")
    asked = "identity/bank-compute.request.json"
    result = CliRunner().invoke(app, ["federation", "approve", asked], input="n\n")
    assert result.exit_code == 1
    assert not Path("identity/bank-compute.certificate.json").exists()
    run("federation", "approve", asked, "--yes")
    assert Path("identity/bank-compute.certificate.json").exists()


def test_a_revocation_says_which_list_it_made() -> None:
    run("federation", "create", "fed.example")
    _, told = run("federation", "revoke", "--party", "bank", "--role", "compute")
    assert "deny-list number 1 of fed.example holds 1 entries" in told
    _, told = run("federation", "revoke", "--serial", "ab")
    assert "number 2" in told


def test_a_role_that_is_none_is_a_manifest_error() -> None:
    run("federation", "create", "fed.example")
    with pytest.raises(ManifestError, match=r"expected one of auditor"):
        run("federation", "invite", "--party", "bank", "--role", "king")


@pytest.mark.parametrize(
    "command",
    [
        ("federation", "create"),
        ("federation", "serve"),
        ("federation", "invite"),
        ("federation", "approve"),
        ("federation", "revoke"),
        ("join",),
        ("request",),
        ("install",),
    ],
)
def test_every_help_teaches_by_example(command: tuple[str, ...]) -> None:
    shown, _ = run(*command, "--help")
    assert f"splitlearn {' '.join(command)}" in shown


def test_a_registrar_serves_in_a_process_of_its_own_until_ctrl_c(here: Path) -> None:
    run("federation", "create", "fed.example")
    code = "from parties import federation; federation.app()"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as process:
        assert process.stderr is not None
        address = process.stderr.readline().rsplit(" ", 1)[-1].strip()
        token, _ = run("federation", "invite", "--party", "bank", "--role", "compute")
        run("join", token.strip(), "--registrar", address)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "certified spiffe://fed.example/party/bank/role/compute" in told
    assert "registrar stopped" in told

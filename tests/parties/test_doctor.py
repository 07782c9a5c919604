import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from parties import doctor
from splitlearn.coordination import diagnose
from splitlearn.errors import ManifestError
from splitlearn.identity import Finding, Identity, Registrar
from splitlearn.roles import Role
from tests.bilingual import Bilingual
from tests.federation import make_authority, make_identity
from tests.jobs import Changes, make_job
from tests.tongues import tongues

app = typer.Typer()
app.command()(doctor.doctor)


@pytest.fixture
def bank(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "bank", Role.COMPUTE)


@pytest.fixture
def registrar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Any party that listens will do; this one listens without a torch."""
    monkeypatch.setattr("splitlearn.identity.diagnose._VERDICT_S", 0.05)
    with Registrar(make_authority(tmp_path).folder, port=0) as serving:
        yield serving.address


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_healthy_party_gets_a_line_per_check(bank: Identity) -> None:
    code, shown = run("--folder", str(bank.folder))
    assert code == 0
    assert [line.split(":")[0] for line in shown.splitlines()] == [
        "ok    versions",
        "ok    identity folder",
        "ok    own certificate",
    ]


def test_a_peer_is_examined_by_address_and_name(bank: Identity, registrar: str) -> None:
    folder = ("--folder", str(bank.folder), "--peer", registrar)
    code, shown = run(*folder, "--party", "registrar", "--role", "registrar")
    assert (code, "ok    peer: spiffe://fed.example/party/registrar" in shown) == (0, True)
    code, shown = run(*folder)
    assert code == 0
    code, shown = run(*folder, "--party", "lab", "--role", "trusted")
    assert code == 4
    assert "FAIL  peer: " in shown
    assert "wrong role" in shown
    assert "-> compare CA, clocks and names" in shown


def test_nobody_there_ends_with_the_code_of_a_network_failure(bank: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    code, shown = run("--folder", str(bank.folder), "--peer", address)
    assert code == 5
    assert f"FAIL  port: peer at {address} refuses connections" in shown


def test_a_missing_folder_is_a_finding_too(tmp_path: Path) -> None:
    code, shown = run("--folder", str(tmp_path / "none"))
    assert code == 2
    assert "FAIL  identity folder" in shown


def test_half_an_expectation_is_a_manifest_error(bank: Identity) -> None:
    folder = ("--folder", str(bank.folder))
    with pytest.raises(ManifestError, match=r"give --peer"):
        run(*folder, "--party", "lab")
    for half in (("--party", "lab"), ("--role", "trusted")):
        with pytest.raises(ManifestError, match=r"belong together"):
            run(*folder, "--peer", "127.0.0.1:1", *half)


def test_a_settings_file_says_whom_to_reach(bank: Identity, registrar: str, tmp_path: Path) -> None:
    settings = tmp_path / "compute.toml"
    (tmp_path / "policy.toml").touch()
    text = (
        f'[run]\nfolder = "runs"\n[identity]\nfolder = "{bank.folder}"\n'
        '[policy]\nfile = "policy.toml"\n[peer]\nparty = "lab"\n'
    )
    settings.write_text(text + f'dial = "{registrar}"\n')
    code, shown = run(str(settings))
    assert code == 4
    assert "expected spiffe://fed.example/party/lab/role/trusted" in shown
    settings.write_text(text + 'listen = "127.0.0.1:0"\n')
    assert run(str(settings))[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings.write_text(text + f'listen = "127.0.0.1:{listener.getsockname()[1]}"\n')
        code, shown = run(str(settings))
    assert (code, "ok    own port" in shown) == (0, True)


def test_neighbours_of_a_direct_chain_are_examined_as_compute_parties(
    bank: Identity, registrar: str, tmp_path: Path
) -> None:
    settings = tmp_path / "compute.toml"
    (tmp_path / "policy.toml").touch()
    settings.write_text(
        f'[run]\nfolder = "runs"\n[identity]\nfolder = "{bank.folder}"\n'
        '[policy]\nfile = "policy.toml"\n[peer]\nparty = "lab"\nlisten = "127.0.0.1:0"\n'
        f'[[neighbour]]\nparty = "farm"\ndial = "{registrar}"\n'
    )
    code, shown = run(str(settings))
    assert code == 4
    assert "expected spiffe://fed.example/party/farm/role/compute" in shown


def test_a_device_that_the_settings_ask_for_and_that_is_not_there_is_a_finding(
    bank: Identity, tmp_path: Path
) -> None:
    settings = tmp_path / "compute.toml"
    (tmp_path / "policy.toml").touch()
    settings.write_text(
        f'[run]\nfolder = "runs"\ndevice = "cuda:99"\n[identity]\nfolder = "{bank.folder}"\n'
        '[policy]\nfile = "policy.toml"\n[peer]\nparty = "lab"\nlisten = "127.0.0.1:0"\n'
    )
    code, shown = run(str(settings))
    assert code == 2
    assert "FAIL  device: " in shown
    assert 'compute.toml: run.device is "cuda:99", and torch' in shown


def test_a_settings_file_that_is_wrong_is_a_manifest_error(tmp_path: Path) -> None:
    settings = tmp_path / "job.toml"
    settings.write_text("[data]\n")
    with pytest.raises(ManifestError, match=r"job\.toml"):
        run(str(settings))
    with pytest.raises(ManifestError, match=r"none\.toml"):
        run(str(tmp_path / "none.toml"))


def test_its_help_teaches_by_example() -> None:
    assert "splitlearn doctor job.toml" in run("--help")[1]


def test_every_peer_of_a_chain_is_looked_at_and_what_is_ours_said_once(
    tmp_path: Path, registrar: str
) -> None:
    clinic = make_identity(tmp_path, "clinic", Role.TRUSTED)
    chain = {"party": "farm", "dial": registrar, "first": 2}
    changes: Changes = {"identity": {"folder": str(clinic.folder)}, "[chain]": chain}
    code, shown = run(str(make_job(tmp_path / "job", changes=changes)))
    assert code == 5  # nobody is at the first one's port
    assert "FAIL  port" in shown
    assert "expected spiffe://fed.example/party/farm/role/compute" in shown
    assert shown.count("identity folder") == 1


def test_a_generators_settings_are_examined_down_to_its_coordinators_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's part is `coordination.diagnose`, which meets a real one in its own tests."""
    settings = tongues(tmp_path, {"anna": "aa"}).generators["anna"]
    code, shown = run(str(settings))
    assert code == 5
    assert "ok    own certificate" in shown
    assert "FAIL  port: peer at 127.0.0.1:1 refuses connections" in shown
    monkeypatch.setattr(diagnose, "check_port", lambda *_, **__: Finding("port", ok=True, what=""))
    monkeypatch.setattr(diagnose, "ask_health", lambda *_, **__: -400.0)
    code, shown = run(str(settings))
    assert code == 4
    assert "FAIL  coordinator's clock: clock here is 400 s behind the coordinator's" in shown
    settings.write_text(settings.read_text().replace("anna-generator", "nowhere"))
    code, shown = run(str(settings))
    assert code == 2
    assert "coordinator" not in shown


def test_a_hubs_settings_are_examined_down_to_its_coordinators_door(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        made = tongues(tmp_path / "up", {"ana": "aa"}, control=door.getsockname()[1])
        code, shown = run(str(made.job))
    assert code == 0
    assert "ok    port: " in shown
    made = tongues(tmp_path / "down", {"ana": "aa"}, control=1)
    code, shown = run(str(made.job))
    assert code == 5
    assert "FAIL  port: peer at 127.0.0.1:1 refuses connections" in shown


@pytest.mark.parametrize(
    ("role", "peer", "other"),
    [(Role.ENCODER, "target", Role.DECODER), (Role.DECODER, "source", Role.ENCODER)],
)
def test_owners_of_sentence_pairs_are_examined_and_look_for_each_other(
    tmp_path: Path, role: Role, peer: str, other: Role
) -> None:
    both = Bilingual(tmp_path)
    settings = both.encoder if role is Role.ENCODER else both.decoder
    (aim,) = doctor._read(settings)
    assert (aim.party, aim.role) == (peer, other.value)
    code, shown = run(str(settings))
    assert "ok    identity folder" in shown
    # Nobody is there yet: whoever listens finds its port free, whoever dials finds nobody.
    assert code == (0 if role is Role.ENCODER else 5)

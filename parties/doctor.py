"""Why does it not connect? One line per check: port, name, certificate, clock, version.

Thin: splitlearn.identity.diagnose finds out, splitlearn.channel.inquire asks the peer's own opinion,
this prints it and ends with the exit code that a run would have ended with.
"""

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitlearn.errors import ManifestError, SplitLearnError
from splitlearn.roles import Role

if TYPE_CHECKING:
    from splitlearn.identity import Finding, PartyName
    from splitlearn.manifest.compute import ComputeRunTable
    from splitlearn.manifest.fields import PeerTable
    from splitlearn.manifest.tables import RunTable

__all__ = ["doctor"]


def doctor(
    settings: Annotated[
        Path | None,
        typer.Argument(
            help="job.toml, compute.toml, generator.toml, pretrain.toml, encoder.toml or decoder.toml: "
            "whom to reach, and as whom."
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="This party's folder, without a settings file.")] = (
        Path("identity")
    ),
    peer: Annotated[str | None, typer.Option(help="HOST:PORT of a peer that listens.")] = None,
    party: Annotated[str | None, typer.Option(help="The name that the peer should bear.")] = None,
    role: Annotated[str | None, typer.Option(help="The role that the peer should have.")] = None,
) -> None:
    """Find out why two parties do not connect, and what to do about it.

    \b
    Examples:
        splitlearn doctor job.toml
        splitlearn doctor generator.toml
        splitlearn doctor --peer gpu-house.example:7443 --party gpu-house --role compute

    Run it on the side that dials, while the other side runs. Nothing is changed anywhere; the other
    side says in one line that it was asked.
    """
    if settings is not None:
        aims = _read(settings)
    elif peer is None and (party or role):
        raise ManifestError("--party and --role say who should answer; give --peer HOST:PORT too")
    else:
        aims = (_Aim(folder=folder, peer=peer, party=party, role=role),)
    findings: list[Finding] = []
    for aim in aims:
        # What is ours is the same for every peer of a chain, and said once.
        for finding in _findings(aim):
            if finding not in findings:
                findings.append(finding)
                _show(finding)
    failed = [finding for finding in findings if not finding.ok]
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _findings(aim: "_Aim") -> "tuple[Finding, ...]":
    """About ourselves, and about the one peer that `aim` has."""
    from splitlearn.identity import check_listen, examine
    from splitlearn.identity.diagnose import check_port

    if aim.coordinator is not None:
        return _coordinator_findings(aim, address=aim.coordinator)
    expected = _expected(aim)
    findings = examine(aim.folder, now=datetime.now(UTC), address=aim.peer, expected=expected)
    asked = expected is not None and expected.role in _CONVERSING
    if aim.peer is not None and expected is not None and asked and all(f.ok for f in findings):
        findings = (*findings, _opinion(aim.folder, address=aim.peer, peer=expected))
    if aim.listen is not None:
        findings = (*findings, check_listen(aim.listen))
    if aim.control is not None:
        findings = (*findings, check_port(aim.control, deadline_s=_OPINION_S))
    return findings if aim.computes is None else (*findings, _device(*aim.computes))


def _device(settings: Path, name: str, precision: str) -> "Finding":
    """Is the device there that this party is to compute on?"""
    from splitlearn.engine.state.device import find_device
    from splitlearn.identity import Finding

    try:
        find_device(name, precision=precision, file=settings)
    except ManifestError as error:
        what, _, remedy = str(error).partition("; ")
        code = error.exit_code
        return Finding("device", ok=False, what=what, remedy=remedy, exit_code=code)
    return Finding("device", ok=True, what=f"{name} is there, for {precision}")


def _coordinator_findings(aim: "_Aim", *, address: str) -> "tuple[Finding, ...]":
    """About a generator, and about the coordinator of its rounds."""
    from splitlearn.coordination.diagnose import examine_coordinator
    from splitlearn.identity import examine

    own = examine(aim.folder, now=datetime.now(UTC))
    # Without keys there is nobody to ask as; a registrar that is away is no reason not to ask.
    if any(finding.name == "identity folder" and not finding.ok for finding in own):
        return own
    return *own, *examine_coordinator(aim.folder, address=address, party=aim.party)


# Roles that listen for conversations; a registrar answers other questions.
_CONVERSING = frozenset({Role.TRUSTED, Role.COMPUTE, Role.ENCODER, Role.DECODER})


@dataclass(frozen=True)
class _Aim:
    """Whose folder is examined, and which peer should be reached or awaited where.

    computes: file, device and precision, of a party that asks for another than the CPU.

    coordinator: where a generator's rounds are called from, in place of a peer. control: the door of the
    coordinator on this machine, for a discriminator.
    """

    folder: Path
    peer: str | None = None
    listen: str | None = None
    party: str | None = None
    role: str | None = None
    coordinator: str | None = None
    control: str | None = None
    computes: tuple[Path, str, str] | None = None


def _read_node(settings: Path) -> tuple[_Aim, ...]:
    """A generator's: it has no peer, but a coordinator that calls it to rounds."""
    from splitlearn.manifest import load_generator

    table = load_generator(settings)
    hub = table.coordinator
    return (_Aim(folder=table.identity.folder, coordinator=str(hub.address), party=hub.party),)


def _read_hub(settings: Path) -> tuple[_Aim, ...]:
    """A discriminator's: generators dial it, and it calls them by way of its own machine."""
    from splitlearn.manifest import load_pretrain

    job = load_pretrain(settings)
    listen = str(job.listen.address) if job.listen.address.port else None
    control = str(job.coordinator.address)
    return (_Aim(folder=job.identity.folder, listen=listen, control=control),)


def _read(settings: Path) -> tuple[_Aim, ...]:
    """One for each peer."""
    from splitlearn.manifest import load_compute, load_decoder, load_encoder, load_job

    if _has(settings, "rounds"):
        return _read_hub(settings)
    if _has(settings, "coordinator"):
        return _read_node(settings)
    computes = None
    # Of those that have data only a trusted party has a task, and only who sets the pace names the run;
    # each role's peer is the other one.
    if _has(settings, "data") and not _has(settings, "model", key="task"):
        leads = _has(settings, "run", key="name")
        half = load_decoder(settings) if leads else load_encoder(settings)
        peers: tuple[PeerTable, ...] = (half.peer,)
        folder, role = half.identity.folder, Role.ENCODER if leads else Role.DECODER
    elif _has(settings, "data"):
        job = load_job(settings)
        folder, peers, role = job.identity.folder, job.peers, Role.COMPUTE
        computes = _computes(settings, job.run)
    else:
        table = load_compute(settings)
        folder, computes = table.identity.folder, _computes(settings, table.run)
        neighbours = (_aim(peer, folder=folder, role=Role.COMPUTE) for peer in table.neighbour)
        host = _aim(table.peer, folder=folder, role=Role.TRUSTED, computes=computes)
        return host, *neighbours
    return tuple(_aim(peer, folder=folder, role=role, computes=computes) for peer in peers)


def _aim(
    peer: "PeerTable",
    *,
    folder: Path,
    role: Role,
    computes: tuple[Path, str, str] | None = None,
) -> _Aim:
    """At one peer of a settings file."""
    return _Aim(
        folder=folder,
        peer=str(peer.dial) if peer.dial else None,
        listen=str(peer.listen) if peer.listen and peer.listen.port else None,
        party=peer.party,
        role=role.value,
        computes=computes,
    )


def _computes(settings: Path, run: "RunTable | ComputeRunTable") -> tuple[Path, str, str] | None:
    return None if run.device == "cpu" else (settings, run.device, run.precision)


def _has(settings: Path, table: str, *, key: str | None = None) -> bool:
    """Whether a file has a table, and in it a key."""
    try:
        found = tomllib.loads(settings.read_text(encoding="utf-8")).get(table)
        return found is not None and (key is None or key in found)
    except (OSError, ValueError):
        # The strict reader has the better sentence for what is wrong.
        return False


def _expected(aim: _Aim) -> "PartyName | None":
    from splitlearn.identity import Identity, PartyName
    from splitlearn.identity.names import parse_role

    if aim.party is None and aim.role is None:
        return None
    if aim.party is None or aim.role is None:
        raise ManifestError("--party and --role belong together: give both, or neither")
    federation = Identity.load(aim.folder).name.federation
    return PartyName(federation=federation, party=aim.party, role=parse_role(aim.role))


def _opinion(folder: Path, *, address: str, peer: "PartyName") -> "Finding":
    """Does the peer, which answers, speak our protocol and take a party of our name and role?"""
    from splitlearn.channel import inquire
    from splitlearn.identity import Finding, Identity

    name = "peer's opinion"
    try:
        inquire(address, identity=Identity.load(folder), peer=peer, deadline_s=_OPINION_S)
    except SplitLearnError as error:
        remedy = (
            "compare versions, and our name and role with the peer's settings, with the people who "
            "run the other side"
        )
        return Finding(name, ok=False, what=str(error), remedy=remedy, exit_code=error.exit_code)
    return Finding(name, ok=True, what="it speaks the same protocol and would take us")


# Seconds. A listener answers a HELLO within one round trip.
_OPINION_S = 5.0


def _show(finding: "Finding") -> None:
    typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {finding.what}")
    if not finding.ok:
        typer.echo(f"      -> {finding.remedy}")

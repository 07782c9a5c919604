"""Why does it not connect? One line per check: port, name, certificate, clock, version.

Thin: splitlearn.identity.diagnose finds out, this prints it and ends with the exit code that a run
would have ended with.
"""

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitlearn.errors import ManifestError
from splitlearn.roles import Role

if TYPE_CHECKING:
    from splitlearn.identity import Finding, PartyName

__all__ = ["doctor"]


def doctor(
    settings: Annotated[
        Path | None, typer.Argument(help="job.toml or compute.toml: whom to reach, and as whom.")
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
        splitlearn doctor --peer gpu-house.example:7443 --party gpu-house --role compute

    Run it on the side that dials, while the other side runs. Nothing is changed anywhere.
    """
    from splitlearn.identity import check_listen, examine

    if settings is not None:
        aim = _read(settings)
    elif peer is None and (party or role):
        raise ManifestError("--party and --role say who should answer; give --peer HOST:PORT too")
    else:
        aim = _Aim(folder=folder, peer=peer, party=party, role=role)
    findings = examine(aim.folder, now=datetime.now(UTC), address=aim.peer, expected=_expected(aim))
    if aim.listen is not None:
        findings = (*findings, check_listen(aim.listen))
    for finding in findings:
        _show(finding)
    failed = [finding for finding in findings if not finding.ok]
    if failed:
        raise typer.Exit(failed[0].exit_code)


@dataclass(frozen=True)
class _Aim:
    """Whose folder is examined, and which peer should be reached or awaited where."""

    folder: Path
    peer: str | None = None
    listen: str | None = None
    party: str | None = None
    role: str | None = None


def _read(settings: Path) -> _Aim:
    from splitlearn.manifest import load_compute, load_job

    # Only a trusted party has data; each role's peer is the other one.
    trusted = _has_data(settings)
    table = load_job(settings) if trusted else load_compute(settings)
    dial, listen = table.peer.dial, table.peer.listen
    return _Aim(
        folder=table.identity.folder,
        peer=str(dial) if dial else None,
        listen=str(listen) if listen and listen.port else None,
        party=table.peer.party,
        role=(Role.COMPUTE if trusted else Role.TRUSTED).value,
    )


def _has_data(settings: Path) -> bool:
    try:
        return "data" in tomllib.loads(settings.read_text(encoding="utf-8"))
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


def _show(finding: "Finding") -> None:
    typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {finding.what}")
    if not finding.ok:
        typer.echo(f"      -> {finding.remedy}")

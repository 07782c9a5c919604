"""Founding a federation, inviting parties and joining it: the commands of registrar and parties.

Thin: each command calls one function of splitlearn.identity and says what came of it. A token goes to
standard output alone, so that a script can take it; everything for people goes to standard error.
"""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app", "install", "join", "request"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Found a federation, serve its registrar, invite parties, deny them.\n\n"
        "One organisation runs these, in one folder that holds the federation's CA:\n\n"
        "  splitlearn federation create clinics.example\n\n"
        "  splitlearn federation serve --host 0.0.0.0\n\n"
        "  splitlearn federation invite --party gpu-house --role compute"
    ),
)

Folder = Annotated[Path, typer.Option(help="Folder of the federation's CA.")]
IdentityFolder = Annotated[Path, typer.Option(help="Folder for this party's keys and certificate.")]
PartyOption = Annotated[str, typer.Option(help="The party's name: a-z, 0-9 and '-'.")]
RoleOption = Annotated[str, typer.Option(help="trusted, compute, auditor, ...")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The federation's name, like a host name.")],
    folder: Folder = Path("federation"),
) -> None:
    """Make a new federation with a CA of its own.

    \b
    Example:
        splitlearn federation create clinics.example

    The folder holds the CA's key. Keep it on one machine and in no backup that others can read.
    """
    from splitlearn.identity import create_federation

    authority = create_federation(folder, name=name)
    _say(f"federation {authority.federation} lies in {authority.folder}")
    _say(f"its CA's key has the fingerprint {authority.pin}")


@app.command()
def serve(
    folder: Folder = Path("federation"),
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8470,
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT that parties dial, where it is another.")
    ] = None,
) -> None:
    """Serve the registrar: joins, renewals and the deny-list. Ctrl-C stops it.

    \b
    Examples:
        splitlearn federation serve
        splitlearn federation serve --host 0.0.0.0 --advertise ca.clinics.example:8470

    Parties need it when they join, and once a day to renew; a run in progress does not.
    """
    from splitlearn.identity import Registrar

    registrar = Registrar(folder, host=host, port=port, advertised=advertise, report=_say)
    _say(f"registrar of {registrar.authority.federation} serves at {registrar.address}")
    try:
        registrar.serve_forever()
    except KeyboardInterrupt:
        _say("registrar stopped")
    finally:
        registrar.close()


@app.command()
def invite(
    party: PartyOption,
    role: RoleOption,
    folder: Folder = Path("federation"),
    hours: Annotated[float, typer.Option(help="How long the token can be used, up to 168.")] = 1.0,
) -> None:
    """Print a join token for one party in one role: one use, one hour.

    \b
    Examples:
        splitlearn federation invite --party clinic --role trusted
        splitlearn federation invite --party gpu-house --role compute --hours 24

    Hand the token over by a way that only this party can read. Who has it can join as this party.
    """
    from splitlearn.identity import Authority
    from splitlearn.identity import invite as make_token
    from splitlearn.identity.names import parse_role

    token = make_token(folder, party=party, role=parse_role(role), ttl_s=hours * 3600)
    address = Authority.open(folder).registrar or "HOST:PORT"
    _say(f"good for {hours:g} h and one use; {party} runs:")
    _say(f"  splitlearn join TOKEN --registrar {address}")
    typer.echo(token)


@app.command()
def approve(
    request_file: Annotated[Path, typer.Argument(help="What splitlearn request wrote.")],
    folder: Folder = Path("federation"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Certify a request that was carried here by hand; writes the certificate file beside it.

    \b
    Example:
        splitlearn federation approve gpu-house-compute.request.json

    Approve only what you expect: whoever wrote the file chose the name in it.
    """
    from splitlearn.identity import Authority, asked_name
    from splitlearn.identity import approve as certify

    name = asked_name(request_file)
    if not yes:
        typer.confirm(f"certify {name.uri}?", abort=True, err=True)
    path = certify(folder, request_file=request_file)
    authority = Authority.open(folder)
    _say(f"certified {name.uri}; carry {path} back, and read them the CA's fingerprint:")
    _say(f"  splitlearn install {path.name} --pin {authority.pin}")


@app.command()
def revoke(
    folder: Folder = Path("federation"),
    party: Annotated[str | None, typer.Option(help="The party to deny.")] = None,
    role: Annotated[str | None, typer.Option(help="Only in this role.")] = None,
    serial: Annotated[str | None, typer.Option(help="One certificate, by serial in hex.")] = None,
) -> None:
    """Put a party or one certificate on the deny-list.

    \b
    Examples:
        splitlearn federation revoke --party gpu-house
        splitlearn federation revoke --serial 5f3a...

    Parties fetch the list when they join and renew; a denied party cannot renew.
    """
    from splitlearn.identity import revoke as deny
    from splitlearn.identity.names import parse_role

    denied = deny(folder, party=party, role=parse_role(role) if role else None, serial=serial)
    entries = len(denied.uris) + len(denied.serials)
    _say(f"deny-list number {denied.number} of {denied.federation} holds {entries} entries")


def join(
    token: Annotated[str, typer.Argument(help="What splitlearn federation invite printed.")],
    registrar: Annotated[str, typer.Option(help="HOST:PORT of the federation's registrar.")] = (
        "127.0.0.1:8470"
    ),
    folder: IdentityFolder = Path("identity"),
) -> None:
    """Join a federation with a token: make keys here, fetch a certificate for them.

    \b
    Example:
        splitlearn join sl1.0123... --registrar ca.clinics.example:8470

    The token pins the federation's CA, so a wrong registrar is noticed before the token is sent.
    """
    from splitlearn.identity import join as enrol

    identity = enrol(token, address=registrar, folder=folder)
    ends = identity.certificate.not_valid_after_utc
    _say(f"joined as {identity.name.uri}; keys and certificate lie in {folder}")
    _say(f"the certificate ends at {ends:%Y-%m-%d %H:%M} UTC and renews itself while you run")


def request(
    party: PartyOption,
    role: RoleOption,
    federation: Annotated[str, typer.Option(help="The federation's name.")],
    folder: IdentityFolder = Path("identity"),
) -> None:
    """Write a request file, where no line to the registrar is allowed.

    \b
    Example:
        splitlearn request --party gpu-house --role compute --federation clinics.example

    Carry the file to the registrar's people (splitlearn federation approve); it holds no secret.
    """
    from splitlearn.identity import request as ask
    from splitlearn.identity.names import parse_role

    path = ask(folder, party=party, role=parse_role(role), federation=federation)
    _say(f"carry {path} to the registrar, then run: splitlearn install CERTIFICATE_FILE")


def install(
    certificate_file: Annotated[
        Path, typer.Argument(help="What splitlearn federation approve wrote.")
    ],
    pin: Annotated[
        str | None, typer.Option(help="Fingerprint of the CA's key, as its people read it out.")
    ] = None,
    folder: IdentityFolder = Path("identity"),
) -> None:
    """Take over the certificate that answers your request.

    \b
    Example:
        splitlearn install gpu-house-compute.certificate.json --pin 9c1e...

    Without --pin you trust whoever brought the file.
    """
    from splitlearn.identity import install as take_over
    from splitlearn.identity.certificates import pin_of

    identity = take_over(folder, certificate_file=certificate_file, pin=pin)
    _say(f"installed as {identity.name.uri}; keys and certificate lie in {folder}")
    if pin is None:
        _say(f"compare the CA's fingerprint with its people: {pin_of(identity.ca)}")


def _say(line: str) -> None:
    typer.echo(line, err=True)

"""The coordinator: a SuperLink on the discriminator's machine that calls generators to rounds."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Call generators to rounds of pre-training; run it where the discriminator trains.\n\n"
        "  splitlearn coordinator up --host 0.0.0.0\n\n"
        "  splitlearn coordinator nodes"
    ),
)


@app.command()
def up(
    folder: Annotated[Path, typer.Option(help="This party's keys and certificate.")] = Path(
        "identity"
    ),
    state: Annotated[Path, typer.Option(help="Folder for runs, nodes and Flower's own files.")] = (
        Path("coordinator")
    ),
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port that generators dial.")] = 8471,
    control_port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1 for splitlearn pretrain on this machine.")
    ] = 8472,
    federation: Annotated[
        Path | None, typer.Option(help="Folder of a federation's CA: serve its registrar too.")
    ] = None,
    registrar_port: Annotated[int, typer.Option(help="Port of that registrar.")] = 8470,
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT of that registrar that parties dial.")
    ] = None,
) -> None:
    """Serve generators and this machine's own runs. Ctrl-C stops it; started again it goes on.

    \b
    Examples:
        splitlearn coordinator up --host 0.0.0.0
        splitlearn coordinator up --host 0.0.0.0 --federation federation

    Needs an identity with the role discriminator. Every generator that the federation has certified
    and nobody has denied may come; it is a member from its first visit on. With --federation one
    command is enough for a small federation: invite generators with splitlearn federation invite.

    The control port answers this user's processes alone; nobody else may start a run.
    """
    from splitlearn.coordination.superlink import SuperLink
    from splitlearn.identity import Identity, Registrar, kept_fresh

    say = _Once()
    with ExitStack() as serving:
        if federation is not None:
            registrar = serving.enter_context(
                Registrar(
                    federation, host=host, port=registrar_port, advertised=advertise, report=say
                )
            )
            say(f"registrar of {registrar.authority.federation} serves at {registrar.address}")
        identity = Identity.load(folder)
        serving.enter_context(kept_fresh(identity, report=say, every_s=_DENIED_EVERY_S))
        link = SuperLink(
            identity,
            folder=state,
            host=host,
            port=port,
            control_port=control_port,
            report=say,
        )
        say(f"coordinator of {identity.name.federation} serves generators at {link.address}")
        say(f"jobs of this machine say: coordinator.address = {link.control_address!r}")
        try:
            link.serve_forever()
        except KeyboardInterrupt:
            say("coordinator stopped; start it again to go on")
        finally:
            link.close()


@app.command()
def nodes(
    address: Annotated[
        str, typer.Option(help="The coordinator's own door on this machine.")
    ] = "127.0.0.1:8472",
) -> None:
    """List the generators that the coordinator knows, and whether they are there.

    \b
    Example:
        splitlearn coordinator nodes

    A generator that died is called online for up to a minute.
    """
    from splitlearn.coordination.control import Control

    with Control(address) as control:
        known = control.nodes()
    for party, status in sorted(known.items()):
        typer.echo(f"{party}\t{status}")


# Seconds between two looks at the registrar's deny-list: how long a denied generator may stay.
_DENIED_EVERY_S = 15.0


class _Once:
    """Says each line once in a row, for a node that is refused asks again and again."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, line: str) -> None:
        if line != self._last:
            typer.echo(line, err=True)
        self._last = line

"""The generator's commands: join a federation as one, and serve its coordinator's rounds."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Hold one language's text and take part in pre-training; the text stays here.\n\n"
        "  splitlearn generator join TOKEN --registrar ca.clinics.example:8470\n\n"
        "  splitlearn generator run generator.toml"
    ),
)


@app.command()
def join(
    token: Annotated[str, typer.Argument(help="What splitlearn federation invite printed.")],
    registrar: Annotated[str, typer.Option(help="HOST:PORT of the federation's registrar.")] = (
        "127.0.0.1:8470"
    ),
    folder: Annotated[Path, typer.Option(help="Folder for this party's keys.")] = Path("identity"),
) -> None:
    """Join a federation as a generator: keys are made here; the coordinator knows them at once.

    \b
    Example:
        splitlearn generator join sl1.0123... --registrar ca.clinics.example:8470

    The certificate's key is the node's key for Flower as well, so one token is all it takes.
    """
    from splitlearn.errors import ManifestError
    from splitlearn.identity import join as enrol
    from splitlearn.roles import Role

    identity = enrol(token, address=registrar, folder=folder)
    if identity.name.role is not Role.GENERATOR:
        raise ManifestError(
            f"the token was for {identity.name.uri}; its keys lie in {folder} now, but a generator "
            "needs a token of splitlearn federation invite --role generator, and another folder"
        )
    typer.echo(f"joined as {identity.name.uri}; keys and certificate lie in {folder}", err=True)
    typer.echo("next: splitlearn generator run generator.toml", err=True)


@app.command()
def run(
    settings: Annotated[Path, typer.Argument(help="The settings file of this party.")] = Path(
        "generator.toml"
    ),
    state: Annotated[
        Path | None, typer.Option(help="Folder for Flower's files; else one beside the settings.")
    ] = None,
    nproc: Annotated[
        int,
        typer.Option(min=0, max=1024, help="Processes that share a batch; else run.processes."),
    ] = 0,
) -> None:
    """Serve the coordinator's rounds until Ctrl-C; comes back by itself when the line does.

    README.md explains the keys of generator.toml.

    \b
    Example:
        splitlearn generator run generator.toml

    The coordinator sends settings and no code: an app that holds any is refused. A clock that differs
    by more than the coordinator allows is named, and ends the command.
    """
    from splitlearn.coordination.claims import claimed
    from splitlearn.coordination.supernode import SuperNode
    from splitlearn.identity import Identity, files, kept_fresh
    from splitlearn.manifest import load_generator

    table = load_generator(settings)
    identity = Identity.load(table.identity.folder)
    folder = files.make_folder(state or settings.parent / f".{settings.stem}-node")
    alone = claimed(
        folder / "running",
        otherwise=f"another generator runs in {folder}; end it, or give this one another --state",
    )
    try:
        with alone, kept_fresh(identity, report=_say):
            node = SuperNode(
                identity,
                address=str(table.coordinator.address),
                settings=settings,
                folder=folder,
                party=table.coordinator.party,
                processes=nproc,
                report=_say,
            )
            node.run()
    except KeyboardInterrupt:
        _say("generator stopped; start it again to go on")
        raise typer.Exit(_INTERRUPTED) from None


# The shell's own code for a process ended by Ctrl-C.
_INTERRUPTED = 130


def _say(line: str) -> None:
    typer.echo(line, err=True)

"""The compute party: hosts the trunk, waits for work, never sees text, labels, bottom or top."""

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from splitlearn.audit.log import Log
    from splitlearn.channel.base import Channel
    from splitlearn.gate import Gate
    from splitlearn.identity import Identity
    from splitlearn.manifest import Compute
    from splitlearn.session import Session
    from splitlearn.wire.messages import Offer

__all__ = ["compute", "serve_forever"]


def compute(
    settings: Annotated[
        Path, typer.Argument(help="The settings file of this party.", show_default=True)
    ] = Path("compute.toml"),
    runs: Annotated[
        int, typer.Option(help="Stop after so many finished runs; 0 means go on for ever.")
    ] = 0,
    threads: Annotated[
        int, typer.Option(help="Processor threads for the trunk; 0 means as many as there are.")
    ] = 0,
) -> None:
    """Host a trunk: wait for a trusted party, serve its run, wait for the next.

    You need an identity (splitlearn join), a policy and a settings file:

    \b
        [identity]
        folder = "identity"
        [peer]
        party = "clinic"            # the trusted party you work for
        listen = "0.0.0.0:7443"     # or dial = "clinic.example:7443"
        [run]
        folder = "runs"             # logs, checkpoints and received weights
        [model]
        path = "models/minilm"      # optional: saves the transfer of the weights
        [policy]
        file = "policy.toml"

    \b
    Examples:
        splitlearn compute
        splitlearn compute compute.toml --runs 1

    Stop it with Ctrl-C at any time: started again, it takes up where the newest checkpoint is.
    """
    from parties.console import console, interruptible
    from splitlearn.identity import Identity
    from splitlearn.manifest import load_compute

    table = load_compute(settings)
    identity = Identity.load(table.identity.folder)
    if threads:
        import torch

        torch.set_num_threads(threads)
    with interruptible("start it again to go on"):
        console.print(f"{identity.name.dns}: waiting for {table.peer.party}", markup=False)
        serve_forever(table, identity=identity, runs=runs)

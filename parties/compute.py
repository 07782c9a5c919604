"""The compute party: hosts the trunk, waits for work, never sees text, labels, bottom or top."""

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parties.exporting import Figures, MetricsHost, MetricsPort, exporting

if TYPE_CHECKING:
    from parties.neighbours import Neighbourhood
    from splitlearn.channel import Conversation
    from splitlearn.engine.state.device import Device
    from splitlearn.identity import Identity
    from splitlearn.manifest import Compute
    from splitlearn.policy import Policy

__all__ = ["compute"]


def compute(
    settings: Annotated[Path, typer.Argument(help="The settings file of this party.")] = Path(
        "compute.toml"
    ),
    runs: Annotated[
        int, typer.Option(min=0, help="End after so many finished runs; 0: go on for ever.")
    ] = 0,
    threads: Annotated[
        int, typer.Option(min=0, help="Processor threads for the trunk; 0: as many as there are.")
    ] = 0,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Host a trunk: wait for the trusted party, serve its run, wait for the next.

    \b
    compute.toml:
        \\[run]
        folder = "runs"             # logs, checkpoints, received weights
        device = "cuda"             # optional: where the trunk runs; else the CPU
        \\[identity]
        folder = "identity"         # what splitlearn join made
        \\[peer]
        party = "clinic"            # the trusted party to work for
        listen = "0.0.0.0:7443"     # or dial = "clinic.example:7443"
        \\[model]
        path = "models/minilm"      # optional: saves sending the weights
        \\[policy]
        file = "policy.toml"
        \\[\\[neighbour]]               # only for a chain whose parties send to one another
        party = "farm"
        dial = "farm.example:7444"  # or listen = "0.0.0.0:7444"

    \b
    Examples:
        splitlearn compute
        splitlearn compute compute.toml --runs 1 --threads 8

    Ctrl-C ends it at any time; started again, a run goes on from its newest checkpoint.
    """
    from parties.console import interruptible
    from parties.neighbours import Neighbourhood
    from parties.reach import Reach
    from parties.serving import serve_runs
    from splitlearn import policy
    from splitlearn.identity import Identity
    from splitlearn.manifest import load_compute
    from splitlearn.roles import Role

    table = load_compute(settings)
    rules = policy.load(table.policy.file)
    identity = Identity.load(table.identity.folder)
    _check_folder(table.run.folder)
    from splitlearn.engine.state.device import find_device

    device = find_device(table.run.device, precision=table.run.precision, file=settings)
    with (
        interruptible("start it again to go on"),
        exporting(metrics_port, host=metrics_host) as figures,
        _warmed_up(threads),
        Reach(identity, peer=table.peer, role=Role.TRUSTED) as reach,
        Neighbourhood(identity, table) as neighbourhood,
    ):
        serve_runs(
            reach,
            runs=runs,
            serve=lambda channel: _serve(
                channel,
                table=table,
                identity=identity,
                rules=rules,
                figures=figures,
                neighbourhood=neighbourhood,
                device=device,
            ),
        )


def _serve(
    channel: "Conversation",
    *,
    table: "Compute",
    identity: "Identity",
    rules: "Policy",
    figures: Figures,
    neighbourhood: "Neighbourhood",
    device: "Device",
) -> None:
    """One run, however often its trusted party comes back."""
    from parties.console import Display, console
    from parties.neighbours import Street
    from parties.reach import farewell
    from splitlearn import __version__
    from splitlearn.audit import Log
    from splitlearn.channel import PeerRestarted
    from splitlearn.engine.compute.arriving import RunPlace
    from splitlearn.engine.compute.engine import ComputeEngine
    from splitlearn.engine.events import all_of
    from splitlearn.errors import IdentityError
    from splitlearn.gate import Gate
    from splitlearn.session import Session
    from splitlearn.wire.messages import Offer

    peer = channel.authorised
    if peer is None:
        raise IdentityError(f"{channel.peer} has not proved who it is")
    folder = table.run.folder / f"{peer.name.party}-{channel.run}"
    model = table.model.path
    place = RunPlace(
        checkpoints=folder / "checkpoints",
        received=table.run.folder / "weights",
        models=(Path(model),) if model is not None and Path(model).is_dir() else (),
        cache_bytes=table.run.cache_mb * 2**20,
    )
    with (
        farewell(channel),
        Log.open(
            folder / "audit", origin=identity.name.dns, signer=identity.log_key, clock=time.time
        ) as log,
        closing(Street(neighbourhood, identity, rules, folder)) as street,
    ):

        def open_gate(offer: Offer, session: Session) -> Gate:
            return Gate.open(
                rules,
                log=log,
                session=session,
                me=identity.name,
                peer=peer.name,
                binding=peer.fingerprint,
                offer=offer,
                software=f"splitlearn {__version__}",
            )

        with Display("serving", total=None) as display:
            engine = ComputeEngine(
                channel,
                open_gate=open_gate,
                place_of=lambda _: place,
                deadline_s=table.run.deadline_s,
                observe=all_of(display, figures),
                neighbours=street if neighbourhood else None,
                device=device,
            )
            figures.follow(engine)
            while True:
                try:
                    engine.serve()
                    break
                except PeerRestarted as error:
                    console.print(str(error), markup=False)
    console.print(
        f"run {channel.run!r} of {peer.name.dns} is finished; log: {folder / 'audit'}", markup=False
    )


@contextmanager
def _warmed_up(threads: int) -> Iterator[None]:
    """Import what a run needs, which takes seconds, before a peer has to wait for it."""
    from splitlearn.engine.state.threads import use_threads

    use_threads(threads)
    importlib.import_module("splitlearn.engine.compute.engine")
    yield


def _check_folder(folder: Path) -> None:
    """Find out before a peer comes whether logs can be written. Raises AuditError."""
    from splitlearn.errors import AuditError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(0, "no permission")
    except OSError as error:
        raise AuditError(
            f"run folder {folder} cannot be written ({error.strerror}); nothing is sent or taken "
            "without a record: choose another run.folder"
        ) from None

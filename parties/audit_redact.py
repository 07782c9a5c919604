"""`splitlearn audit redact`: destroy a kept frame, and say so in the log."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["redact"]


def redact(
    log: Annotated[Path, typer.Argument(help="Folder of your own log.")],
    record: Annotated[int, typer.Argument(help="Number of the payload's record.")],
    identity: Annotated[
        Path, typer.Option(help="Your identity folder: its key signs the log's new head.")
    ],
    why: Annotated[
        Literal["request", "retention", "mistake"],
        typer.Option(help="What stands in the log as the reason."),
    ] = "request",
) -> None:
    """Destroy the sealed frame that was kept of one message. Its record stays, with a new one beside.

    What was destroyed are this folder's copies of the frame and of its key. Copies that were given
    away with the run key can still be read by whoever has them.

    \b
    Example:
        splitlearn audit show runs/news/audit --kept
        splitlearn audit redact runs/news/audit 41 --why request --identity identity

    \b
    Exit code: 0 done, 2 no such frame, 6 the log is being written or is not yours.
    """
    from parties.audit_words import check_log
    from splitlearn import audit
    from splitlearn.identity import Identity

    check_log(log)
    owner = Identity.load(identity)
    name = audit.redact(log, record, why=why, origin=owner.name.dns, signer=owner.log_key)
    typer.echo(f"frame {name} of record {record} is destroyed; the log says so ({why})")

"""`splitlearn audit show`: the records of a log, filtered, followed, and one payload taken apart."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from splitlearn.audit import PartShape, Payload, Record, RunOpen
    from splitlearn.audit.dissect import PartView

__all__ = ["POLL_S", "show"]

# Seconds between two looks at a log that is being followed.
POLL_S = 0.2


def show(  # noqa: PLR0913, PLR0917  (a filter has many conditions)
    log: Annotated[Path, typer.Argument(help="Folder of the log.")],
    run: Annotated[str, typer.Option(help="Only this run.")] = "",
    peer: Annotated[str, typer.Option(help="Only where this stands in the peer's URI.")] = "",
    kind: Annotated[
        list[str] | None, typer.Option(help="Only this kind, such as activation; repeat for more.")
    ] = None,
    of_type: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only this type of record, such as receipt; repeat for more."),
    ] = None,
    direction: Annotated[
        Literal["in", "out"] | None, typer.Option(help="Only what went out, or came in.")
    ] = None,
    verdict: Annotated[
        Literal["allow", "denied"] | None, typer.Option(help="Only what passed, or was stopped.")
    ] = None,
    step: Annotated[str, typer.Option(help="Only this step, or these: 3, 3:9, 3: or :9.")] = "",
    size: Annotated[
        str, typer.Option(help="Only frames of so many bytes: 1000000: or :4096.")
    ] = "",
    kept: Annotated[
        bool, typer.Option("--kept", help="Only messages whose frame was kept.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on with what is being written; Ctrl-C ends it."),
    ] = False,
    payload: Annotated[
        int | None, typer.Option(help="Take the kept frame of this record apart, and nothing else.")
    ] = None,
    blob_key: Annotated[
        Path | None,
        typer.Option(help="File with the run key of the sealed frames, where the log has none."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print whole records, one JSON object a line.")
    ] = False,
) -> None:
    """List a log's records, filtered as in a packet viewer; or take one kept payload apart.

    A record says what was sent, never what was in it. --payload needs a frame that was kept (those of
    canary batches are) and its key; it shows how the values are spread and not one of them.

    \b
    Examples:
        splitlearn audit show runs/news/audit --direction out --kind activation --step 3:9
        splitlearn audit show runs/news/audit --verdict denied
        splitlearn audit show runs/news/audit --size 1000000: --peer farm
        splitlearn audit show runs/news/audit --follow --type receipt --type peer.checkpoint
        splitlearn audit show runs/news/audit --payload 41 --blob-key blobs.key
        splitlearn audit show runs/news/audit --json | jq .wire_bytes
    """
    from parties.audit_words import check_log, printable
    from parties.console import interruptible
    from splitlearn.audit.query import Filter, parse_span, select
    from splitlearn.audit.records import encode

    check_log(log)
    if payload is not None:
        typer.echo("\n".join(map(printable, _payload(log, payload, blob_key=blob_key))))
        return
    wanted = Filter(
        types=frozenset(of_type or ()),
        kinds=frozenset(kind or ()),
        run=run,
        peer=peer,
        direction=direction,
        verdict=verdict,
        step=parse_span(step, option="--step"),
        wire_bytes=parse_span(size, option="--size"),
        kept=kept,
    )
    with interruptible("the log goes on without you"):
        for index, record in select(log, wanted, wait=_sleep if follow else None):
            if as_json:
                typer.echo(encode(record)[:-1])
            else:
                typer.echo(printable(_line(index, record)))


def _sleep() -> bool:
    time.sleep(POLL_S)
    return True


def _coded(record: "Payload") -> str:
    """The codec, and what it lost."""
    error = f" (error {record.error:.3g})" if record.error else ""
    return f"{record.codec or '-'}{error}"


def _line(index: int, record: "Record") -> str:
    from splitlearn.audit.query import type_of

    try:
        at = datetime.fromtimestamp(record.time, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        at = "no such time"
    return f"{index:>8}  {at:<19}  {type_of(record):<15}  {_told(record)}"


def _told(record: "Record") -> str:
    from splitlearn import audit
    from splitlearn.audit.records import Checkpointed

    match record:
        case audit.Payload():
            step = "" if record.step is None else f" step {record.step}.{record.micro_batch or 0}"
            kept = "" if record.blob == "withheld" else "  kept"
            told = (
                f"{record.direction:<3} {record.kind:<14} #{record.message}{step}  "
                f"{_shapes(record.parts)}  {record.wire_bytes:,} bytes  {_coded(record)}  "
                f"{record.verdict} by {', '.join(record.rules)}  {record.peer}{kept}"
            )
        case audit.Denied():
            told = (
                f"{record.direction:<3} {record.kind:<14} stopped by {record.rule}  "
                f"{_shapes(record.parts)}  {record.peer}"
            )
        case audit.RunOpen():
            told = (
                f"run {record.run} with {record.peer.id}, {record.mode}, {_about(record)}, "
                f"policy {record.policy[:16]}..."
            )
        case audit.Receipt():
            told = f"{record.peer} took in {record.last} messages"
        case audit.PeerCheckpoint():
            told = (
                f"{record.peer} showed a head of {record.size} records and countersigned "
                f"{record.mine} of ours"
            )
        case audit.HopHead():
            told = f"the log of what is said with {record.neighbour} has a head of {record.size} records"
        case audit.PolicyChange():
            told = f"run {record.run} goes on under policy {record.policy[:16]}..."
        case audit.Redaction():
            told = f"frame of record {record.record} destroyed ({record.why})"
        case audit.Leakage():
            told = f"{record.at}: tokens {record.tokens}, labels {record.labels}"
        case Checkpointed():
            told = f"head signed ({record.why})"
        case audit.Gap():
            told = f"the process before ended by surprise; {record.torn_bytes} bytes dropped"
        case _:
            assert isinstance(record, audit.RunClose), "every other type stands above"
            told = (
                f"run {record.run} {record.outcome}: {record.messages_out} out, "
                f"{record.messages_in} in, {record.denied} stopped"
            )
    return told


def _about(record: "RunOpen") -> str:
    """What a conversation is about."""
    if record.cut:
        return f"layers {record.cut[0]} to {record.cut[1]}"
    if record.layer:
        return f"a hop before layer {record.layer}"
    return "an encoder's rows" if record.purpose == "translate" else f"round {record.round}"


def _shapes(parts: "tuple[PartShape, ...]") -> str:
    shown = [f"{part.name}:{part.dtype}{list(part.shape)}" for part in parts[:3]]
    more = [f"and {len(parts) - 3} more"] if len(parts) > 3 else []
    return " ".join([*shown, *more]) or "-"


def _payload(log: Path, wanted: int, *, blob_key: Path | None) -> list[str]:
    from splitlearn import audit
    from splitlearn.audit.blobs import parse_run_key
    from splitlearn.audit.dissect import dissect
    from splitlearn.errors import ManifestError

    record = next((record for index, record in audit.read_records(log) if index == wanted), None)
    if not isinstance(record, audit.Payload) or record.blob == "withheld":
        raise ManifestError(
            f"record {wanted} has no kept frame; splitlearn audit show --kept lists those that have"
        )
    run_key = None
    if blob_key is not None:
        try:
            run_key = parse_run_key(blob_key.read_bytes())
        except OSError as error:
            raise ManifestError(f"--blob-key {blob_key}: {error.strerror}") from None
    raw = audit.Blobs.open(log, create=False).read(record.blob, run_key=run_key)
    frame = dissect(raw)
    same = (frame.kind, frame.message, frame.wire_bytes) == (
        record.kind,
        record.message,
        record.wire_bytes,
    )
    packed = "; a part called zstd is compressed, and its bytes are what is shown"
    packed = packed if any(part.name == "zstd" for part in frame.parts) else ""
    judged = "as recorded" if same else "NOT as recorded"
    return [
        f"record   {wanted}, {record.direction} {record.kind}, message {record.message}",
        f"peer     {record.peer}",
        f"frame    {frame.kind}, message {frame.message}, {frame.wire_bytes:,} bytes; {judged}",
        f"place    {frame.place or '-'}",
        f"beside   {', '.join(frame.meta) or 'nothing'}",
        f"codec    {record.codec or '-'}, {record.rows} rows of {record.columns}{packed}",
        *(line for part in frame.parts for line in _part(part)),
    ]


def _part(part: "PartView") -> list[str]:
    from splitlearn.audit.dissect import sparkline

    first = f"part     {part.name}  {part.dtype} {list(part.shape)}  {part.data_bytes:,} bytes"
    histogram = part.histogram
    if histogram is None:
        return [first, "         too few values for a histogram that is none of them"]
    odd = f", {histogram.not_finite} not finite" if histogram.not_finite else ""
    return [
        first,
        f"         {histogram.low:.2g} {sparkline(histogram.counts)} {histogram.high:.2g}{odd}",
    ]

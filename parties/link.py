"""The emulated link as a command: how will this run behave over a slower network?"""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from splitlearn.errors import ManifestError

if TYPE_CHECKING:
    from splitlearn.emulator import Relay, Wire
    from splitlearn.manifest.fields import Address

__all__ = ["app", "emulate"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Try a run on a slower or a faulty network before it is run in earnest.\n\n"
        "  splitlearn link emulate --listen 127.0.0.1:7001 --to 127.0.0.1:7000 --mbit 100 --rtt-ms 20"
    ),
)


@app.callback()
def link() -> None:
    """A group of its own, though it has one command."""


@app.command()
def emulate(  # noqa: PLR0913, PLR0917 - options, each by its name
    listen: Annotated[str, typer.Option(help="HOST:PORT to dial instead of the peer's.")],
    to: Annotated[str, typer.Option(help="HOST:PORT of the peer that listens.")],
    mbit: Annotated[
        float | None, typer.Option(min=0.01, help="Megabits a second each way; without: no limit.")
    ] = None,
    mbit_back: Annotated[
        float | None, typer.Option(min=0.01, help="Another rate towards whoever dials.")
    ] = None,
    rtt_ms: Annotated[float, typer.Option(min=0, max=60_000, help="Round trip.")] = 0.0,
    jitter_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="Up to so much more, each way; order is kept.")
    ] = 0.0,
    cut_after_s: Annotated[
        float | None, typer.Option(min=0, help="Reset every connection then, once.")
    ] = None,
    cut_for_s: Annotated[float, typer.Option(min=0, help="And every new one for so long.")] = 0.0,
    stall_after_s: Annotated[
        float | None, typer.Option(min=0, help="Carry nothing from then on, silently.")
    ] = None,
    stall_for_s: Annotated[float, typer.Option(min=0, help="For so long.")] = 0.0,
    flip_after_s: Annotated[
        float | None, typer.Option(min=0, help="Flip one bit on its way to the peer then.")
    ] = None,
    for_s: Annotated[
        float | None, typer.Option(min=0, help="End after so long; without: at Ctrl-C.")
    ] = None,
) -> None:
    """Stand between two parties as a network of this bandwidth and delay, with faults if asked for.

    \b
    Examples:
        splitlearn link emulate --listen 127.0.0.1:7001 --to 127.0.0.1:7000 --mbit 100 --rtt-ms 20
        splitlearn link emulate --listen :7001 --to gpu.example:7000 --cut-after-s 60 --cut-for-s 5

    Needs no privilege. Let the party that dials dial the listening address here. Times of faults
    count from the first connection. What crossed is said at the end, in bytes of TCP payload.
    """
    from splitlearn.emulator import Relay, Wire

    here, there = _address("--listen", listen), _address("--to", to)
    if not there.port:
        raise ManifestError(f"--to is {to!r}; it takes the port that the peer listens at")

    def wire(rate: float | None) -> Wire:
        return Wire(
            bits_per_s=None if rate is None else rate * 1e6,
            delay_s=rtt_ms / 2e3,
            jitter_s=jitter_ms / 1e3,
        )

    up, down = wire(mbit), wire(mbit if mbit_back is None else mbit_back)
    faults = _faults(
        ("cut", cut_after_s, cut_for_s),
        ("stall", stall_after_s, stall_for_s),
        ("flip", flip_after_s, None),
    )

    async def work() -> None:
        relay = Relay((there.host, there.port), up=up, down=down)
        port = await relay.start(here.host, here.port)
        typer.echo(f"{here.host}:{port} carries to {there}: {_described(up, down)}")
        failing = asyncio.create_task(_fail(relay, faults))
        try:
            await asyncio.sleep(_FOREVER_S if for_s is None else for_s)
        finally:
            failing.cancel()
            await relay.stop()
            typer.echo(
                f"{relay.connections} connections; {up.carried} bytes to the peer, "
                f"{down.carried} bytes back"
            )

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


# A day of sleep after another is no reason to end; a century is.
_FOREVER_S = 100 * 365 * 86_400.0
_ANY_HOST = "0.0.0.0"  # noqa: S104 - what ":7001" asks for

_Faults = list[tuple[float, str]]


def _faults(*asked: tuple[str, float | None, float | None]) -> _Faults:
    """Times, from the first connection on, and what to do then; in order."""
    found: _Faults = []
    for what, after_s, for_s in asked:
        if after_s is None:
            if for_s:
                raise ManifestError(f"--{what}-for-s is given without --{what}-after-s")
            continue
        found.append((after_s, what))
        if for_s is not None:
            found.append((after_s + for_s, "heal"))
    return sorted(found)


async def _fail(relay: "Relay", faults: _Faults) -> None:
    await relay.dialled.wait()
    began_s = time.monotonic()
    act = {"cut": relay.cut, "stall": relay.stall, "flip": relay.flip, "heal": relay.heal}
    for at_s, what in faults:
        await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
        act[what]()
        typer.echo(f"{at_s:g} s: {_SAID[what]}")


_SAID = {
    "cut": "every connection was reset",
    "stall": "nothing is carried any more",
    "flip": "one bit on its way to the peer is flipped",
    "heal": "the link is whole again",
}


def _described(up: "Wire", down: "Wire") -> str:
    rates = dict.fromkeys(
        "no limit" if wire.bits_per_s is None else f"{wire.bits_per_s / 1e6:g} Mbit/s"
        for wire in (up, down)
    )
    each = " there, ".join(rates) + (" back" if len(rates) > 1 else " each way")
    jitter = f", up to {up.jitter_s * 1e3:g} ms more each way" if up.jitter_s else ""
    return f"{each}, round trip {2e3 * up.delay_s:g} ms{jitter}"


def _address(option: str, text: str) -> "Address":
    from pydantic import TypeAdapter, ValidationError

    from splitlearn.manifest.fields import Address, AddressField

    if text.startswith(":"):
        text = _ANY_HOST + text
    try:
        found: Address = TypeAdapter(AddressField).validate_python(text)
    except ValidationError:
        raise ManifestError(f"{option} is {text!r}; it takes HOST:PORT") from None
    return found

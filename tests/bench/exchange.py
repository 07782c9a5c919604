"""What an exchange costs: 64 KiB there and back, against a bare grpc.aio echo on the same TLS.

Twice: over the channel alone, and as a run does it, through session, gate, policy, codec and log at
both ends. Two processes on loopback, blocks of all three interleaved, medians. Writes
out/bench/exchange.json and prints the same. Run as `python -m tests.bench.exchange`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import numpy as np
import torch

from splitlearn.channel import Listener, Released, connect
from splitlearn.channel.loop import LoopThread
from splitlearn.codecs import build
from splitlearn.engine.conversation.talk import SETTLE_MESSAGES, Talk
from splitlearn.gate import Private
from splitlearn.identity import Identity
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.wire import frames
from splitlearn.wire.messages import Accept, Empty, Finish, Offer, Resume, StepTensor
from tests.federation import make_identity
from tests.rig import compute_party, trusted_party
from tests.session.test_steps import offer as make_offer

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "exchange.json"
PAYLOAD_BYTES = 64 * 2**10
ROWS, COLUMNS = 64, 256  # as many bytes in float32
BLOCK = 25
ROUNDS = 24
WARM_UP_ROUNDS = 4
WAIT_S = 30.0
TARGET_MS = 2.0


def serve(folder: Path) -> None:
    """The other process: both echoes, until its stdin is closed."""
    identity = Identity.load(folder)
    loop = LoopThread("bare echo")
    server, port = loop.run(bare_server(identity), timeout_s=WAIT_S)
    roles = frozenset({Role.TRUSTED})
    listener = Listener("127.0.0.1:0", identity=identity, expect_roles=roles)
    gated = Listener("127.0.0.1:0", identity=identity, expect_roles=roles)
    answering = threading.Thread(target=answer_gated, args=(gated, folder), daemon=True)
    answering.start()
    print(port, listener.port, gated.port, flush=True)
    channel = listener.accept(timeout_s=WAIT_S)
    for _ in range((ROUNDS + WARM_UP_ROUNDS) * BLOCK):
        frame = channel.receive(timeout_s=WAIT_S)
        channel.send(Released(kind=frame.kind, seq=frame.seq, raw=frame.raw), deadline_s=WAIT_S)
    sys.stdin.read()
    channel.close()
    listener.close()
    answering.join(WAIT_S)
    gated.close()
    loop.run(server.stop(0), timeout_s=WAIT_S)
    loop.close()


def answer_gated(listener: Listener, folder: Path) -> None:
    """A compute party whose trunk gives back what it gets, behind everything that a run has."""
    channel = listener.accept(timeout_s=WAIT_S)
    party = compute_party(folder / "gated")
    session = Session(me=Role.COMPUTE, peer=Role.TRUSTED)
    first = channel.receive(timeout_s=WAIT_S)
    assert isinstance(first.meta, Offer)
    gate = party.gate(first.meta, session)
    talk = Talk(channel=channel, session=session, gate=gate, deadline_s=WAIT_S)
    talk.admit(first)
    talk.say(Kind.ACCEPT, Accept((0,), (), 0))
    talk.hear(Kind.RESUME)
    talk.say(Kind.READY, Empty())
    codec = build("identity")
    while (frame := talk.hear(Kind.ACTIVATION, Kind.FINISH)).kind is not Kind.FINISH:
        if frame.kind is Kind.SETTLE:
            talk.answer_settlement(frame)
            continue
        x_ND = talk.tensor(frame, codec=codec, rows=ROWS, width=COLUMNS)
        meta = msgspec.structs.replace(frame.meta, lengths=(), reply_to=frame.seq)
        talk.say(Kind.OUTPUT, meta, tensor=x_ND, codec=codec)
    talk.say(Kind.CLOSED, Empty())
    channel.close()


class GatedClient:
    """The trusted half of the same."""

    def __init__(self, port: int, *, trusted: Identity, compute: Identity, folder: Path) -> None:
        session = Session(me=Role.TRUSTED, peer=Role.COMPUTE)
        offer = make_offer(mode="features", back=False)
        self._channel = connect(
            f"127.0.0.1:{port}", identity=trusted, peer=compute.name, deadline_s=WAIT_S
        )
        self._talk = Talk(
            channel=self._channel,
            session=session,
            gate=trusted_party(folder).gate(offer, session),
            deadline_s=WAIT_S,
        )
        self._talk.say(Kind.OFFER, offer)
        self._talk.hear(Kind.ACCEPT)
        self._talk.say(Kind.RESUME, Resume(0, 0))
        self._talk.hear(Kind.READY)
        generator = torch.Generator().manual_seed(0)
        self._x_ND = torch.randn(ROWS, COLUMNS, generator=generator)
        ids = torch.randint(1000, 30000, (1, ROWS), generator=generator)
        self._private = Private(ids=ids.numpy(), labels=(np.array([1]),), lengths=(ROWS,))
        self._codec = build("identity")
        self.settle_ms: list[float] = []

    def exchanges(self) -> list[float]:
        """Milliseconds of each exchange of one block."""
        taken = []
        for i in range(BLOCK):
            meta = StepTensor(0, i, BLOCK, "evaluate", ROWS, True, (ROWS,), 0)
            began = time.perf_counter()
            self._talk.say(
                Kind.ACTIVATION,
                meta,
                tensor=self._x_ND,
                codec=self._codec,
                private=self._private,
            )
            frame = self._talk.hear(Kind.OUTPUT)
            self._talk.tensor(frame, codec=self._codec, rows=ROWS, width=COLUMNS)
            taken.append(1e3 * (time.perf_counter() - began))
        if self._talk.session.unsettled >= SETTLE_MESSAGES:
            began = time.perf_counter()
            self._talk.settle()
            self.settle_ms.append(1e3 * (time.perf_counter() - began))
        return taken

    def close(self) -> None:
        self._talk.say(Kind.FINISH, Finish(False))
        self._talk.hear(Kind.CLOSED)
        self._channel.close()


async def bare_server(identity: Identity) -> tuple[grpc.aio.Server, int]:
    """An echo of messages, with nothing of ours in it."""

    async def echo(requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(message := await context.read(), bytes):
            await context.write(message)

    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bare", {"Echo": method}),)
    )
    credentials = grpc.ssl_server_credentials(
        [(identity.key_pem, identity.chain_pem)], identity.ca_pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, port


class BareClient:
    """The dialling half of the bare echo."""

    def __init__(self, port: int, *, identity: Identity, name: str) -> None:
        credentials = grpc.ssl_channel_credentials(
            identity.ca_pem, identity.key_pem, identity.chain_pem
        )
        options = [("grpc.ssl_target_name_override", name)]
        self.channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
        self.call: grpc.aio.StreamStreamCall[bytes, bytes] = self.channel.stream_stream(
            "/bare/Echo"
        )()

    async def exchanges(self, payload: bytes) -> list[float]:
        """Milliseconds of BLOCK exchanges."""
        took = []
        for _ in range(BLOCK):
            began = time.perf_counter()
            await self.call.write(payload)
            await self.call.read()
            took.append(1e3 * (time.perf_counter() - began))
        return took

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()


async def dial_bare(port: int, *, identity: Identity, name: str) -> BareClient:
    """Make the client in the loop that will use it."""
    return BareClient(port, identity=identity, name=name)


def measure(
    ports: tuple[int, int, int], *, trusted: Identity, compute: Identity, folder: Path
) -> None:
    """Interleave all three, write the result."""
    port, channel_port, gated_port = ports
    gated = GatedClient(gated_port, trusted=trusted, compute=compute, folder=folder)
    loop = LoopThread("bare client")
    name = compute.name.dns
    bare = loop.run(dial_bare(port, identity=trusted, name=name), timeout_s=WAIT_S)
    channel = connect(
        f"127.0.0.1:{channel_port}", identity=trusted, peer=compute.name, deadline_s=WAIT_S
    )
    meta = StepTensor(
        step=0,
        micro_batch=0,
        micro_batches=1,
        phase="train",
        width=1,
        packed=True,
        lengths=(1,),
        reply_to=0,
    )
    payload = bytes(PAYLOAD_BYTES)
    bare_ms: list[float] = []
    channel_ms: list[float] = []
    gated_ms: list[float] = []
    seq = 0
    for turn in range(WARM_UP_ROUNDS + ROUNDS):
        block = loop.run(bare.exchanges(payload), timeout_s=WAIT_S)
        own = []
        for _ in range(BLOCK):
            seq += 1
            raw = frames.encode(Kind.ACTIVATION, seq=seq, meta=meta, payload=payload)
            began = time.perf_counter()
            channel.send(Released(kind=Kind.ACTIVATION, seq=seq, raw=raw), deadline_s=WAIT_S)
            channel.receive(timeout_s=WAIT_S)
            own.append(1e3 * (time.perf_counter() - began))
        whole = gated.exchanges()
        if turn >= WARM_UP_ROUNDS:
            bare_ms += block
            channel_ms += own
            gated_ms += whole
    loop.run(bare.close(), timeout_s=WAIT_S)
    loop.close()
    channel.close(reason="measured")
    gated.close()
    # What a settlement costs, spread over the exchanges that it is for, two messages each.
    share_ms = statistics.median(gated.settle_ms) / (SETTLE_MESSAGES / 2)
    write(bare_ms, channel_ms, gated_ms, share_ms=share_ms)


def write(
    bare_ms: list[float], channel_ms: list[float], gated_ms: list[float], *, share_ms: float
) -> None:
    """Medians, their difference and ratio, as JSON."""
    bare, own = statistics.median(bare_ms), statistics.median(channel_ms)
    whole = statistics.median(gated_ms) + share_ms
    result = {
        "payload_bytes": PAYLOAD_BYTES,
        "exchanges": len(channel_ms),
        "bare_ms": round(bare, 4),
        "channel_ms": round(own, 4),
        "gated_ms": round(whole, 4),
        "settlement_share_ms": round(share_ms, 4),
        "channel_overhead_ms": round(own - bare, 4),
        "overhead_ms": round(whole - bare, 4),
        "ratio": round(whole / bare, 3),
        "bare_p95_ms": round(statistics.quantiles(bare_ms, n=20)[-1], 4),
        "channel_p95_ms": round(statistics.quantiles(channel_ms, n=20)[-1], 4),
        "target_overhead_ms": TARGET_MS,
        "ok": whole - bare <= TARGET_MS,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def main() -> None:
    """Start the other process, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, help="be the other process, for this folder")
    serving: Path | None = parser.parse_args().serve
    torch.set_num_threads(1)
    if serving is not None:
        serve(serving)
        return
    with tempfile.TemporaryDirectory() as scratch:
        trusted = make_identity(Path(scratch), "alpha", Role.TRUSTED)
        compute = make_identity(Path(scratch), "beta", Role.COMPUTE)
        command = [sys.executable, "-m", "tests.bench.exchange", "--serve", str(compute.folder)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            bare, channel, gated = map(int, other.stdout.readline().split())
            measure((bare, channel, gated), trusted=trusted, compute=compute, folder=Path(scratch))


if __name__ == "__main__":
    main()

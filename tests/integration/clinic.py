"""A trusted party at its command line: its files, its commands in this process, and peers of any kind.

The peers live in a thread each, over the real channel, so that a test can have one that lies.
"""

import contextlib
import io
import json
import random
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertTokenizerFast

from parties import cli
from parties.reach import farewell
from splitlearn.channel import Conversation, Listener, PeerRestarted, Released
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.streams import CONTROL, FRAMES, LinkLost, Server, ServerStream
from splitlearn.errors import SplitLearnError
from splitlearn.identity import Identity, PartyName
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Accept, Empty, Offer, Settlement
from tests.rig import ComputeThread, Party
from tests.settling import ScriptedLog
from tests.tiny import VOCABULARY, tiny_model

WIDTH = 32
WAIT_S = 20.0
# Seconds. Whoever is refused later than this sees a ChannelError, which no test here takes.
PROMPT_S = 5.0
# Whoever dials may have to import torch first, on a machine that is busy.
_COMING_S = 120.0

Script = Callable[[Conversation], None]


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says why."""
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error:")]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0]
        return lines[0]


def splitlearn(*arguments: object) -> Outcome:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    words = ["splitlearn", *(str(argument) for argument in arguments)]
    code = 0
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Outcome(code, out.getvalue(), err.getvalue())


def write_model(folder: Path) -> Path:
    """A BERT of three layers with a tokenizer of whole words w5, w6 and so on."""
    special = {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4}
    words = {f"w{number}": number for number in range(len(special), VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel({**special, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=40).save_pretrained(folder)
    tiny_model("bert", layers=3).save_pretrained(folder)
    return folder


def write_rows(path: Path, *, count: int = 48) -> None:
    """Random words with labels that nothing explains."""
    draw = random.Random(5)
    lines = []
    for _ in range(count):
        text = " ".join(f"w{draw.randrange(5, VOCABULARY)}" for _ in range(draw.randrange(8, 30)))
        lines.append(json.dumps({"text": text, "label": draw.choice(("good", "bad", "odd"))}))
    path.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Clinic:
    """A trusted party's folder with everything that a run takes."""

    folder: Path
    model: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def job(self, address: str = "127.0.0.1:9", **changes: dict[str, object]) -> Path:
        """Write job.toml. changes: tables of it, key by key; None leaves a key out."""
        policies = Path(cli.__file__).parent / "policies"
        tables: dict[str, dict[str, object]] = {
            "run": {"name": "tiny", "folder": "run", "deadline_s": PROMPT_S},
            "identity": {"folder": "clinic-trusted"},
            "peer": {"party": "gpuhost", "dial": address},
            "model": {"path": str(self.model), "task": "sequence-classification"},
            "data": {"train": "train.jsonl", "text": "text", "label": "label", "max_length": 40},
            "cut": {"bottom": 1, "top": -1},
            "codec": {},
            "schedule": {"epochs": 1, "batch_size": 16},
            "policy": {"file": str(policies / "standard.toml")},
        }
        lines = []
        for name in tables | changes:
            values = {**tables.get(name, {}), **changes.get(name, {})}
            lines.append(f"[{name}]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None]
        write_rows(self.folder / "train.jsonl")
        path = self.folder / "job.toml"
        path.write_text("\n".join(lines) + "\n")
        return path


class Peer:
    """A listening party that plays `script` once and takes its leave; `error` is how it ended."""

    def __init__(
        self, identity: Identity, script: Script, *, expects: PartyName | None = None
    ) -> None:
        self.error: BaseException | None = None
        self.reports: list[str] = []
        self._script = script
        self._listener = Listener(
            "127.0.0.1:0",
            identity=identity,
            expect_roles=frozenset({Role.TRUSTED}),
            peer=expects,
            report=self.reports.append,
        )
        self.port = self._listener.port
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """End it; `error` stands from then on."""
        self._listener.close()
        self._thread.join(_COMING_S)
        assert not self._thread.is_alive()

    def ended(self) -> BaseException | None:
        """Wait until the script is over by itself; its error."""
        self._thread.join(_COMING_S)
        assert not self._thread.is_alive()
        return self.error

    def _play(self) -> None:
        try:
            channel = self._listener.accept(timeout_s=_COMING_S)
            with farewell(channel):
                self._script(channel)
        except SplitLearnError as error:
            self.error = error


def honest(party: Party) -> Script:
    """Serves a run as a compute party does."""

    def script(channel: Conversation) -> None:
        thread = ComputeThread(party, channel)
        thread.join(WAIT_S)
        party.log.close()
        if thread.error is not None:
            raise thread.error

    return script


def answering(raw_of: Callable[[Frame], bytes | None]) -> Script:
    """Serves until the first activation and answers it with any bytes, or not at all."""

    def script(channel: Conversation) -> None:
        def heard() -> Frame:
            while True:
                with contextlib.suppress(PeerRestarted):
                    return channel.receive(timeout_s=WAIT_S)
                channel.renew()

        def hear() -> Frame:
            frame = heard()
            log.hear(frame)
            return frame

        def send(kind: Kind, raw: bytes, seq: int) -> None:
            channel.send(Released(kind=kind, seq=seq, raw=raw), deadline_s=WAIT_S)

        first = heard()
        assert isinstance(first.meta, Offer)
        assert channel.authorised is not None
        trusted = channel.authorised.name
        log = ScriptedLog(
            first.meta, me=replace(trusted, party="gpuhost", role=Role.COMPUTE), peer=trusted
        )
        log.hear(first)
        accept = frames.encode(Kind.ACCEPT, seq=1, meta=Accept((), ("layers",), 0))
        send(Kind.ACCEPT, accept, 1)
        while hear().kind is not Kind.RESUME:
            pass
        send(Kind.READY, frames.encode(Kind.READY, seq=2, meta=Empty()), 2)
        shown = hear().meta
        assert isinstance(shown, Settlement)
        settled = frames.encode(Kind.SETTLED, seq=3, meta=log.answer(shown))
        send(Kind.SETTLED, settled, 3)
        assert hear().kind is Kind.COUNTERSIGNED
        raw = raw_of(hear())
        if raw is not None:
            send(Kind.OUTPUT, raw, 4)
        while True:
            hear()

    return script


def container(dtype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """A tensor container with one tensor x that says of itself whatever it is told to say."""
    slot = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"x": slot}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


@contextlib.contextmanager
def bare_listener(
    identity: Identity, on_frames: Callable[[ServerStream], object] | None = None
) -> Iterator[str]:
    """A TLS listener with any certificate, even one that a Listener would not begin with."""
    loop = LoopThread("bare listener")

    async def silent(stream: ServerStream) -> None:
        with contextlib.suppress(LinkLost):
            while await stream.read() is not None:
                if on_frames is not None:
                    await on_frames(stream)  # type: ignore[misc]

    async def start() -> Server:
        server = Server(
            "127.0.0.1:0",
            identity=lambda: identity,
            handlers={FRAMES: silent, CONTROL: silent},
        )
        await server.start()
        return server

    server = loop.run(start(), timeout_s=WAIT_S)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        loop.run(server.stop(), timeout_s=WAIT_S)
        del server
        loop.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

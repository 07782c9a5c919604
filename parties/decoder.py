"""The decoder party: holds target text and the loss, sets the pace, keeps what translates."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from splitlearn.errors import AuditError, ManifestError

if TYPE_CHECKING:
    from parties.console import Display
    from splitlearn.channel import Conversation
    from splitlearn.engine.pair.decoding import DecoderEngine
    from splitlearn.engine.pair.pairing import DecoderRun
    from splitlearn.manifest import Decoder

__all__ = ["METRICS", "TRANSLATIONS", "PairMetrics", "app", "train", "translate"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Train a translation model with an encoder party, as the party that owns the target text.\n\n"
        "  splitlearn decoder train decoder.toml\n\n"
        "  splitlearn decoder translate decoder.toml"
    ),
)

METRICS, TRANSLATIONS = "metrics.json", "translations.txt"

Settings = Annotated[Path, typer.Argument(help="The settings file of this party.")]
Threads = Annotated[int, typer.Option(min=0, help="Processor threads; 0: as many as there are.")]


class PairMetrics(msgspec.Struct, frozen=True):
    """metrics.json of a decoder's run folder.

    bleu, signature: of the held-out samples that both parties have, by sacrebleu. losses: one a step of the
    whole run. step_s: median wall seconds of the steps of this process; steps: how many they were. rows:
    received. sent, received: bytes of whole frames by kind; errors: mean relative error of what each kind
    sent through its codec; channel_*: with handshakes and control.
    """

    bleu: float
    signature: str
    samples: dict[str, int]
    losses: list[float]
    step_s: float
    steps: int
    rows: int
    sent: dict[str, int]
    received: dict[str, int]
    errors: dict[str, float]
    channel_sent: int
    channel_received: int


@app.command()
def train(settings: Settings = Path("decoder.toml"), threads: Threads = 0) -> None:
    """Train across the link, then translate the held-out samples and score them.

    \b
    Example:
        splitlearn decoder train decoder.toml

    Writes into the run folder: checkpoints/, audit/, translations.txt, metrics.json. Ctrl-C or a crash
    loses no more than the steps since the newest checkpoint: the same command goes on from there, with
    the same numbers. BLEU needs the extra "translate" (pip install 'splitlearn[translate]').
    """
    from parties.console import console, interruptible

    with interruptible("the same command goes on from the newest checkpoint"):
        manifest = _load(settings, threads)
        with _at_work(manifest, what="training", total=manifest.schedule.steps) as work:
            work.engine.train()
            found = _translated(work)
            work.engine.finish()
        metrics = _written(manifest, work, found)
    console.print(f"BLEU {metrics.bleu:.2f} ({metrics.signature})", markup=False)


@app.command()
def translate(settings: Settings = Path("decoder.toml"), threads: Threads = 0) -> None:
    """Translate the held-out samples with the newest checkpoint, with the encoder party's help.

    \b
    Example:
        splitlearn decoder translate decoder.toml

    Prints the translations, one a line; the score goes to the standard error stream.
    """
    from parties.console import console, interruptible

    with interruptible("nothing was changed"):
        manifest = _load(settings, threads)
        from splitlearn.engine.state.checkpoints import Checkpoints
        from splitlearn.translation.bleu import bleu_of

        if not Checkpoints(manifest.run.folder / "checkpoints").held():
            raise ManifestError(
                f"{manifest.run.folder} holds no checkpoint; run splitlearn decoder train {settings} first"
            )
        with _at_work(manifest, what="translating", total=0) as work:
            found = _translated(work)
            work.engine.finish()
    for _, written in found:
        typer.echo(written)
    score = bleu_of([text for _, text in found], references=[text for text, _ in found])
    console.print(f"BLEU {score.score:.2f} ({score.signature})", markup=False)


@dataclass
class _Work:
    """A run under way."""

    engine: "DecoderEngine"
    channel: "Conversation"
    run: "DecoderRun"
    display: "Display"


def _load(settings: Path, threads: int) -> "Decoder":
    """The settings, read before torch and its kin are imported: a typo is told at once."""
    from splitlearn.manifest import load_decoder

    manifest = load_decoder(settings)
    from splitlearn.engine.state.threads import use_threads

    use_threads(threads)
    return manifest


@contextmanager
def _at_work(manifest: "Decoder", *, what: str, total: int) -> Iterator[_Work]:
    """Identity, policy, log, peer and engine of a run, and the end of all of them."""
    from parties.console import Display, console
    from parties.pairs import decoder_run, gates
    from parties.reach import Reach, farewell
    from splitlearn import policy
    from splitlearn.engine.pair.decoding import DecoderEngine
    from splitlearn.engine.state.checkpoints import Checkpoints
    from splitlearn.identity import Identity
    from splitlearn.roles import Role

    policy.load(manifest.policy.file)
    identity = Identity.load(manifest.identity.folder)
    console.print("reading data and model", markup=False)
    run, folder = decoder_run(manifest), manifest.run.folder
    with Reach(identity, peer=manifest.peer, role=Role.ENCODER) as reach:
        console.print(f"looking for {reach.name.dns}", markup=False)
        channel = reach.find(run=manifest.run.name, deadline_s=manifest.run.deadline_s)
        with farewell(channel):
            open_gate, close = gates(
                channel, policy=manifest.policy.file, identity=identity, folder=folder / "audit"
            )
            try:
                with Display(what, total=total) as display:
                    engine = DecoderEngine(
                        run,
                        channel,
                        open_gate=open_gate,
                        checkpoints=Checkpoints(folder / "checkpoints"),
                        observe=display,
                    )
                    try:
                        yield _Work(engine, channel, run, display)
                    except BaseException as error:
                        engine.end(error)
                        raise
                    engine.end(None)
            finally:
                close()


def _translated(work: _Work) -> list[tuple[str, str]]:
    work.display.begin("translating", total=len(work.run.corpus.evaluate))
    return work.engine.translate()


def _written(manifest: "Decoder", work: _Work, found: list[tuple[str, str]]) -> PairMetrics:
    """Translations and metrics, in the run folder."""
    from splitlearn.translation.bleu import bleu_of

    engine, folder = work.engine, manifest.run.folder
    score = bleu_of([text for _, text in found], references=[text for text, _ in found])
    metrics = PairMetrics(
        bleu=score.score,
        signature=score.signature,
        samples=engine.samples,
        losses=engine.losses,
        step_s=statistics.median(engine.step_s or [0.0]),
        steps=len(engine.step_s),
        rows=engine.rows,
        sent={kind.value: count for kind, count in sorted(engine.sent.items())},
        received={kind.value: count for kind, count in sorted(engine.received.items())},
        errors={kind.value: lost / n for kind, (lost, n) in sorted(engine.errors.items())},
        channel_sent=work.channel.bytes_sent,
        channel_received=work.channel.bytes_received,
    )
    try:
        lines = "".join(f"{text}\n" for _, text in found)
        (folder / TRANSLATIONS).write_text(lines, encoding="utf-8")
        encoded = msgspec.json.format(msgspec.json.encode(metrics), indent=2)
        (folder / METRICS).write_bytes(encoded + b"\n")
    except OSError as error:
        raise AuditError(f"{folder} cannot be written: {error}; free space there") from error
    return metrics

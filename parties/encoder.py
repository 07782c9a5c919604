"""The encoder party: holds source text and an encoder, answers with rows, never sees a target."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from splitlearn.channel import Conversation
    from splitlearn.engine.pair.pairing import Corpus
    from splitlearn.identity import Identity
    from splitlearn.manifest import Encoder

__all__ = ["app", "serve"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Encode source text for a translation model, as the party that owns it.\n\n"
        "  splitlearn encoder serve encoder.toml"
    ),
)


@app.callback()
def encoder() -> None:
    """A group of its own, though it has one command."""


@app.command()
def serve(
    settings: Annotated[Path, typer.Argument(help="The settings file of this party.")] = Path(
        "encoder.toml"
    ),
    runs: Annotated[
        int, typer.Option(min=0, help="End after so many finished runs; 0: go on for ever.")
    ] = 0,
    threads: Annotated[
        int, typer.Option(min=0, help="Processor threads; 0: as many as there are.")
    ] = 0,
) -> None:
    """Wait for the decoder party, serve its run, wait for the next.

    \b
    encoder.toml:
        \\[run]
        folder = "runs"             # logs, checkpoints
        \\[identity]
        folder = "identity"         # what splitlearn join made
        \\[peer]
        party = "publisher"         # the decoder party
        listen = "0.0.0.0:7443"     # or dial = "publisher.example:7443"
        \\[model]
        path = "models/minilm"
        \\[data]
        train = "train.de.txt"      # one text a line; or csv, tsv, jsonl, parquet, with text and id
        evaluate = "val.de.txt"
        \\[policy]
        file = "policy.toml"        # splitlearn policy show encoder

    \b
    Example:
        splitlearn encoder serve encoder.toml

    Ctrl-C ends it at any time; started again, a run goes on from its newest checkpoint.
    """
    from parties.console import interruptible
    from parties.reach import Reach
    from parties.serving import serve_runs
    from splitlearn import policy
    from splitlearn.identity import Identity, files
    from splitlearn.manifest import load_encoder
    from splitlearn.roles import Role

    table = load_encoder(settings)
    policy.load(table.policy.file)
    identity = Identity.load(table.identity.folder)
    files.make_folder(table.run.folder)
    with interruptible("start it again to go on"):
        from parties.pairs import corpus_of
        from splitlearn.engine.state.threads import use_threads
        from splitlearn.translation.text import load_tokenizer

        use_threads(threads)
        importlib.import_module(
            "splitlearn.engine.pair.encoding"
        )  # before a peer has to wait for it
        corpus = corpus_of(table.data, tokenizer=load_tokenizer(table.model.path))
        with Reach(identity, peer=table.peer, role=Role.DECODER) as reach:
            serve_runs(
                reach,
                runs=runs,
                serve=lambda channel: _serve(
                    channel, table=table, identity=identity, corpus=corpus
                ),
            )


def _serve(
    channel: "Conversation", *, table: "Encoder", identity: "Identity", corpus: "Corpus"
) -> None:
    """One run, however often its decoder party comes back."""
    from parties.console import Display, console
    from parties.pairs import gates, half_of
    from parties.reach import farewell
    from splitlearn.channel import PeerRestarted
    from splitlearn.engine.pair.encoding import EncoderEngine

    peer = channel.authorised
    party = peer.name.party if peer is not None else channel.peer
    folder = table.run.folder / f"{party}-{channel.run}"
    with farewell(channel):
        open_gate, close = gates(
            channel, policy=table.policy.file, identity=identity, folder=folder / "audit"
        )
        try:
            with Display("encoding", total=None) as display:
                engine = EncoderEngine(
                    channel,
                    open_gate=open_gate,
                    half_of=half_of(table, corpus=corpus, folder=folder),
                    deadline_s=table.run.deadline_s,
                    observe=display,
                )
                while True:
                    try:
                        engine.serve()
                        break
                    except PeerRestarted as error:
                        console.print(str(error), markup=False)
        finally:
            close()
    console.print(
        f"run {channel.run!r} of {channel.peer} is finished; log: {folder / 'audit'}", markup=False
    )

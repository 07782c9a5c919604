"""The vocabulary that a pre-training shares: counting one's own text, training, looking. No torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["app", "count", "key", "show", "train"]

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Build the vocabulary that all generators and the discriminator share, without showing each "
        "other text.\n\n"
        "Each party counts, and looks at what it is about to hand on:\n\n"
        "  splitlearn vocab count text.txt -o counts.json --min-count 3\n\n"
        "One of them trains from all counts, and every party takes the file:\n\n"
        "  splitlearn vocab train en.json zh.json -o tokenizer.json --size 8000\n\n"
        "Parties compare the digest that `splitlearn vocab show` prints: ids of another vocabulary "
        "mean nothing, and are refused."
    ),
)


@app.command()
def count(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXT...", help="Your own text: txt, csv, tsv, jsonl or parquet."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the counts go.")],
    min_count: Annotated[
        int, typer.Option(min=1, max=10**6, help="What stands less often stays home.")
    ] = 3,
    column: Annotated[
        str, typer.Option(help="Where the text stands in a file with columns.")
    ] = "text",
) -> None:
    """Count the words of your text that stand often enough in it, to be handed on.

    \b
    Example:
        splitlearn vocab count text.txt -o counts.json --min-count 3

    The file is JSON to be read before it is handed on: pieces of at most 16 characters, the most
    frequent first. A rarer word is in it only by such parts of at most 4 characters as are themselves
    frequent, so that names and numbers that stand once stay home. It is not nothing: who has it
    learns which words you use, and how often.
    """
    from splitlearn.pretrain.counts import count as count_pieces
    from splitlearn.pretrain.counts import save_counts

    found = count_pieces(_lines(texts, column=column), minimum=min_count)
    save_counts(found, out)
    typer.echo(f"{len(found.pieces):,} pieces, {found.total:,} times, in {out}")


@app.command()
def train(
    counts: Annotated[list[Path], typer.Argument(metavar="COUNTS...", help="All parties' counts.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the vocabulary goes.")],
    size: Annotated[int, typer.Option(help="How many ids, special tokens included.")] = 8000,
    kind: Annotated[
        Literal["bpe", "unigram"],
        typer.Option(help="bpe: the same counts give the same file. unigram: nearly."),
    ] = "bpe",
    alpha: Annotated[
        float,
        typer.Option(min=0, max=1, help="1: large parties decide. 0: all parties alike."),
    ] = 0.5,
) -> None:
    """Train a vocabulary from counts alone, and print its digest.

    \b
    Example:
        splitlearn vocab train en.json zh.json -o tokenizer.json --size 8000

    Every party takes this one file. A party's share of the vocabulary goes with its number of words
    to the power of --alpha, so that small languages keep words of their own.
    """
    from splitlearn.pretrain.counts import load_counts, merge
    from splitlearn.pretrain.vocabulary import train_vocabulary

    pieces = merge([load_counts(path) for path in counts], alpha=alpha)
    vocabulary = train_vocabulary(pieces, size=size, kind=kind)
    vocabulary.save(out)
    typer.echo(f"{vocabulary.size:,} ids in {out}\nsha256 {vocabulary.digest}")


@app.command()
def show(
    file: Annotated[
        Path, typer.Argument(metavar="VOCABULARY", help="A tokenizer.json, or a model's folder.")
    ],
    text: Annotated[str, typer.Option(help="Show also how this text is divided.")] = "",
) -> None:
    """Print a vocabulary's size, digest and special tokens, and how it divides a text.

    \b
    Examples:
        splitlearn vocab show tokenizer.json
        splitlearn vocab show tokenizer.json --text "How are you?"
    """
    from splitlearn.pretrain.vocabulary import load_vocabulary
    from splitlearn.wire.ids import bits_of

    vocabulary = load_vocabulary(file)
    typer.echo(
        f"size     {vocabulary.size:,} ids, {bits_of(vocabulary.size)} bits each on the wire"
    )
    typer.echo(f"sha256   {vocabulary.digest}")
    for role in ("pad", "cls", "sep", "mask", "unk"):
        number = getattr(vocabulary, role)
        typer.echo(f"{role:<9}{number} {vocabulary.tokenizer.id_to_token(number)}")
    if text:
        pieces = [vocabulary.tokenizer.id_to_token(number) for number in vocabulary.encode(text)]
        typer.echo(f"pieces   {' '.join(map(str, pieces))}")


@app.command()
def key(
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the key goes, for you alone.")],
) -> None:
    """Make a key by which generators rename ids before they send them.

    \b
    Example:
        splitlearn vocab key -o permutation.key

    All generators of a job need the same key, and the discriminator must not have it. It only keeps
    the vocabulary's table from being read off at once. It is no protection against frequency
    analysis: who counts the ids, and knows the language, finds the words again.
    """
    from splitlearn.pretrain.permutation import new_key, write_key

    write_key(new_key(), out)
    typer.echo(f"{out}, readable by its owner only")


def _lines(texts: list[Path], *, column: str) -> "Iterator[str]":
    from tempfile import TemporaryDirectory

    from splitlearn.pretrain.text import TextSettings, open_text, text_source

    for path in texts:
        source = text_source(path)
        settings = TextSettings(source=source, column="text" if source.format == "txt" else column)
        with TemporaryDirectory(prefix="splitlearn-") as scratch:
            for (text,) in open_text(settings, scratch=Path(scratch)):
                yield text

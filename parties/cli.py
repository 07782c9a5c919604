"""The `splitlearn` command: its tree, and how its errors look.

Imports a role only when it runs it, so that `--help` is quick and an auditor needs no torch.
"""

import sys

import typer
from rich.console import Console

from parties import (
    auditor,
    compute,
    coordinator,
    decoder,
    demo,
    demo_pretrain,
    demo_translate,
    doctor,
    encoder,
    federation,
    link,
    node,
    plan,
    policy,
    pretrain,
    trusted,
    vocab,
)
from splitlearn.errors import ManifestError, SplitLearnError

__all__ = ["app", "main"]

app = typer.Typer(
    name="splitlearn",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(
        "Train one language model across organisations: texts and labels stay with the trusted "
        "party, compute parties host the layers between, every payload passes one gate and is "
        "logged.\n\n"
        "Run one party:  splitlearn trusted train job.toml  |  splitlearn compute\n\n"
        "Pre-train together:  splitlearn coordinator up  |  splitlearn generator run  |  "
        "splitlearn pretrain\n\n"
        "Translate together:  splitlearn encoder serve encoder.toml  |  "
        "splitlearn decoder train decoder.toml\n\n"
        "Join a federation:  splitlearn join TOKEN --registrar HOST:PORT\n\n"
        "Check what was sent:  splitlearn audit verify LOG"
    ),
)
app.add_typer(federation.app, name="federation")
app.add_typer(trusted.app, name="trusted")
app.add_typer(auditor.app, name="audit")
app.add_typer(policy.app, name="policy")
app.add_typer(link.app, name="link")
app.add_typer(coordinator.app, name="coordinator")
app.add_typer(node.app, name="generator")
app.command("pretrain")(pretrain.pretrain)
app.add_typer(vocab.app, name="vocab")
app.add_typer(encoder.app, name="encoder")
app.add_typer(decoder.app, name="decoder")
app.command("join")(federation.join)
app.command("request")(federation.request)
app.command("install")(federation.install)
app.command("compute")(compute.compute)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.command("demo")(demo.demo)
app.command("demo-pretrain")(demo_pretrain.demo_pretrain)
app.command("demo-translate")(demo_translate.demo_translate)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and an exit code, never in a trace.

    Ctrl-C ends a command with 130, by typer or by the command's own last word.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    try:
        app(standalone_mode=True)
    except SplitLearnError as error:
        _tell(console, str(error))
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _tell(
            console,
            "this machine or its device has no memory left for that; smaller pieces take less: a larger "
            "schedule.micro_batches or a smaller data.max_length in the job file. What was saved is kept, "
            "and the same command goes on from it",
        )
        sys.exit(ManifestError.exit_code)


def _tell(console: Console, sentence: str) -> None:
    console.print("error:", style="bold red", end=" ")
    console.print(" ".join(sentence.split()), markup=False)


def _out_of_memory(error: Exception) -> bool:
    """Python's own, a device's as torch has it, or torch's on the CPU; torch need not be imported here."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


if __name__ == "__main__":
    main()

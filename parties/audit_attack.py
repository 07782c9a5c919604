"""`splitlearn audit attack`: what a peer could read out of the canary frames that a log has kept."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from parties.exposure import Measured
    from splitlearn.policy import Leakage

__all__ = ["attack"]


def attack(
    log: Annotated[Path, typer.Argument(help="Folder of the trusted party's log.")],
    model: Annotated[
        str, typer.Option(help="The public model that the run began from: a folder or hub name.")
    ],
    public_text: Annotated[
        Path,
        typer.Option(help="What the attacker learns from: a text file, one text a line."),
    ],
    blob_key: Annotated[
        Path | None,
        typer.Option(help="The key of the sealed frames; left out, blobs.key beside the log."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Write all figures here, as JSON.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that an attack draws.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the attackers' budget: a first look.")
    ] = False,
    identity: Annotated[
        Path | None,
        typer.Option(help="The log's own party only: its identity folder, to log the outcome."),
    ] = None,
) -> None:
    """Attack the canaries of a run: recover their tokens and labels from what was really sent.

    A run keeps the frames of its canaries, known examples that job.toml's canary.file names, sealed
    beside its log. The attacks get those frames, the public model and public text, and nothing else;
    what they say is then held against what the canaries are. Needs the extra "train".

    \b
    Examples:
        splitlearn audit attack run/audit --model models/minilm --public-text news.txt
        splitlearn audit attack run/audit --model models/minilm --public-text news.txt \\
            --blob-key run.key --to leakage.json

    \b
    Exit code: 0 measured, 1 more than the run's policy allows, 2 wrong model or text,
    6 the frames or their record cannot be read.
    """
    from parties.audit_words import check_log
    from parties.console import console, interruptible
    from parties.exposure import check_limits, measured, tables, write
    from splitlearn.audit.blobs import parse_run_key
    from splitlearn.errors import ManifestError, RefusedError

    check_log(log)
    try:
        lines = public_text.read_text(encoding="utf-8").splitlines()
        run_key = None if blob_key is None else parse_run_key(blob_key.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{error}; give a text file and a key file that can be read") from None
    with interruptible("nothing was changed"):
        from splitlearn.engine.job.canaries import attack_canaries
        from splitlearn.leakage import Budget

        with console.status("attacking; this takes minutes"):
            found = attack_canaries(
                log,
                model=model,
                lines=lines,
                run_key=run_key,
                seed=seed,
                budget=Budget.quick() if quick else Budget(),
            )
    figures = measured(
        at="canary", run=found.run, seed=seed, quick=quick, text=found.text, labels=found.labels
    )
    for table in tables(figures):
        console.print(table)
    if not found.gradients:
        console.print("no gradient of a canary left, so no label could be attacked", markup=False)
    limits = _limits(log, found.run)
    if to is not None or identity is not None:
        path = to or log / "canary" / "leakage.json"
        digest = write(path, figures)
        console.print(f"all figures: {path}", markup=False)
        if identity is not None:
            _enter(log, identity, figures, report=digest, limits=limits)
    try:
        check_limits(figures, limits)
    except RefusedError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None


def _limits(log: Path, run: str) -> "Leakage | None":
    """Of the policy that the run went by last."""
    from splitlearn import policy
    from splitlearn.audit import RunOpen, read_records

    texts = [r.policy_text for _, r in read_records(log) if isinstance(r, RunOpen) and r.run == run]
    return policy.parse(texts[-1]).leakage if texts else None


def _enter(
    log: Path, identity: Path, figures: "Measured", *, report: str, limits: "Leakage | None"
) -> None:
    from parties.exposure import enter
    from splitlearn.audit import Log
    from splitlearn.identity import Identity

    me = Identity.load(identity)
    with Log.open(log, origin=me.name.dns, signer=me.log_key, clock=time.time) as opened:
        enter(opened, figures, report=report, limits=limits)

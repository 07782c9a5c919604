"""The trusted party: owns text and labels, sets the pace, keeps the result."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from parties.exporting import MetricsHost, MetricsPort, exporting
from parties.preflight import check_preflight, preflight
from parties.run_metrics import write_metrics
from parties.under_way import under_way
from splitlearn.errors import AuditError, ManifestError

if TYPE_CHECKING:
    from torch import Tensor

    from splitlearn.engine.job.prepare import Prepared
    from splitlearn.engine.trusted.engine import TrustedEngine
    from splitlearn.engine.trusted.generation import Sampling
    from splitlearn.manifest import Job

__all__ = ["app", "evaluate", "export", "generate", "train"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Train, evaluate, export and generate, as the party that owns the data.\n\n"
        "  splitlearn trusted train job.toml\n\n"
        "  splitlearn trusted evaluate job.toml\n\n"
        "  splitlearn trusted export job.toml --to model\n\n"
        "README.md explains every key of job.toml."
    ),
)

JobFile = Annotated[Path, typer.Argument(help="The job file, as in README.md.")]
Threads = Annotated[int, typer.Option(min=0, help="Processor threads; 0: as many as there are.")]

_TRUNK = "trunk-{step}.safetensors"


app.command()(preflight)


@app.command()
def train(
    job: JobFile = Path("job.toml"),
    threads: Threads = 0,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Fine-tune the job's model with the compute parties that it names, and evaluate it.

    \b
    Example:
        splitlearn trusted train job.toml

    Writes into the job's run folder: checkpoints/, audit/ (the log of all that was sent to and
    received from the first compute party; audit-NAME/ of each further one), metrics.json and, where
    TensorBoard is installed, scalars/. Ctrl-C or a crash loses no more than the steps since the newest
    checkpoint: the same command goes on from there, with the same numbers.
    """
    from parties.console import console, interruptible, size

    with interruptible("the same command goes on from the newest checkpoint"):
        manifest = _load(job, threads)
        check_preflight(manifest)
        from parties.curves import Curves
        from parties.lines import logs_of
        from parties.protection import guarantees, outlook, sentence
        from splitlearn.engine.job.canaries import write_canaries
        from splitlearn.engine.job.prepare import prepare
        from splitlearn.engine.trusted.watching import asked_for

        console.print("reading data and model", markup=False)
        prepared = prepare(manifest)
        watch = asked_for(manifest, prepared.data.held_out, prepared.data.evaluation)
        if (told := outlook(manifest)) is not None:
            console.print(told, markup=False)
        total = prepared.data.steps.total
        with (
            exporting(metrics_port, host=metrics_host) as figures,
            Curves(manifest.run.folder / "scalars") as curves,
            under_way(manifest, prepared, "training", total, curves, figures) as work,
        ):
            figures.follow(work.engine)
            write_canaries(logs_of(manifest), prepared, max_length=manifest.data.max_length)
            work.engine.train(prepared.data.steps, watch=watch)
            best, scores = (None, {}) if watch is None else (watch.best, watch.scores)
            if manifest.data.evaluate is not None and best is None:
                work.display.begin("evaluating", total=len(prepared.data.evaluation))
                scores = _scores(prepared, work.engine)
                curves.scores(scores, step=len(work.engine.losses))
            work.engine.finish()
            protected = guarantees(manifest, log=logs_of(manifest)[-1])
            write_metrics(manifest, work, scores, protected)
    for found in protected:
        console.print(sentence(found), markup=False)
    if best is not None:
        console.print(f"kept as the best: the state after step {best}, with", markup=False)
    for name, value in scores.items():
        console.print(f"{name} {value:.4f}", markup=False)
    moved = sum(work.engine.sent.values()) + sum(work.engine.received.values())
    logs = ", ".join(map(str, logs_of(manifest)))
    console.print(f"moved {size(moved)}; log: {logs}", markup=False)


@app.command()
def evaluate(
    job: JobFile = Path("job.toml"),
    bleu: Annotated[
        bool, typer.Option("--bleu", help="Of sequence-to-sequence: score what is said, too.")
    ] = False,
    beams: Annotated[int, typer.Option(min=1, help="Texts tried side by side for --bleu.")] = 1,
    threads: Threads = 0,
) -> None:
    """Score the trained model on the job's held-out data, with the compute party's help.

    \b
    Example:
        splitlearn trusted evaluate job.toml

    Uses the newest checkpoint that both parties hold, or the best where checkpoint.best says so. Prints
    JSON. With --bleu the decoder of a sequence-to-sequence model also says a target for each text, of up to
    data.max_length tokens, and sacrebleu compares them. Nothing more is sent for that, unless layers of the
    decoder are remote: then the targets are said first, in a conversation as generate has it.
    """
    from parties.console import interruptible

    with interruptible("nothing was changed"):
        manifest = _load(job, threads)
        from splitlearn.engine.job.prepare import prepare
        from splitlearn.engine.state.checkpoints import Checkpoints
        from splitlearn.engine.trusted.generation import Sampling

        if manifest.data.evaluate is None:
            raise manifest.fault("data.evaluate", "is missing; name a file to evaluate on")
        if not Checkpoints(manifest.run.folder / "checkpoints").held():
            raise ManifestError(
                f"{manifest.run.folder} holds no checkpoint; run splitlearn trusted train {job} first"
            )
        if bleu:
            if manifest.predicts or not manifest.writes:
                raise manifest.fault(
                    "model.task", f"is {manifest.model.task}; --bleu is for sequence-to-sequence"
                )
            _check_beams(manifest, beams)
            from splitlearn.translation.bleu import check_bleu

            check_bleu()
        prepared, remote = prepare(manifest), manifest.cut.stack != "encoder"
        said = Sampling(manifest.data.max_length, beams=beams) if bleu else None
        written = _said(manifest, prepared, said) if said is not None and remote else []
        prepared = _offered(prepared, to="evaluate")
        total = len(prepared.data.evaluation)
        with under_way(manifest, prepared, "evaluating", total) as work:
            scores = _scores(prepared, work.engine, saying=None if remote else said)
            work.engine.finish()
        if bleu and remote:
            scores["bleu"] = _bleu(prepared, written)
    typer.echo(json.dumps(scores, indent=2))


@app.command()
def generate(
    job: JobFile = Path("job.toml"),
    prompt: Annotated[str, typer.Option(help="The text to go on with.")] = "",
    prompts: Annotated[
        typer.FileText | None, typer.Option(help="A file with a text a line, or - for stdin.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens added to a text.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="0: the likeliest token; else drawn.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1, help="Draw from those that have this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides what is drawn.")] = 0,
    beams: Annotated[
        int, typer.Option(min=1, help="Texts tried side by side, by a decoder that is all here.")
    ] = 1,
    threads: Threads = 0,
) -> None:
    """Go on with texts by the trained decoder, or say what belongs to them, with the compute parties' help.

    \b
    Example:
        splitlearn trusted generate job.toml --prompt "Once upon a time"

    Uses the checkpoint that evaluate uses. Each party keeps the keys and values of its own
    layers while a text grows. Of an encoder with a decoder above it (sequence-to-sequence) a text goes
    through the encoder once, and the decoder says what follows from it: here, or with the parties that have
    layers of it, which get the encoder's output with the first token. Both policies have to say
    generating = true in their rule about activations. Prints each text with what was added, or what was
    said of it, a text a line.
    """
    from parties.console import interruptible

    with interruptible("nothing was changed"):
        manifest = _load(job, threads)
        from splitlearn.engine.job.prepare import prepare
        from splitlearn.engine.trusted.generation import Sampling
        from splitlearn.tasks.models import positions_in
        from splitlearn.tasks.prompts import encode_prompts, encode_sources

        if not manifest.writes:
            raise manifest.fault(
                "model.task", f"is {manifest.model.task}; only a decoder says a text"
            )
        if manifest.direct:
            raise manifest.fault(
                "chain.direct",
                "is true, and texts are gone on with by way of the trusted party only",
            )
        if manifest.predicts and beams > 1:
            raise ManifestError("--beams is for sequence-to-sequence; of a decoder it takes 1")
        _check_beams(manifest, beams)
        texts = [prompt] if prompts is None else [line.rstrip("\n") for line in prompts]
        prepared = _offered(prepare(manifest), to="generate")
        tokenizer = prepared.data.tokenizer
        encode = encode_prompts if manifest.predicts else encode_sources
        limit = positions_in(prepared.model)
        ids = encode(texts, tokenizer=tokenizer, tokens=tokens, limit=limit)
        with under_way(manifest, prepared, "generating", len(ids) * tokens) as work:
            sampling = Sampling(tokens, temperature, top_p, seed, beams)
            outputs = work.engine.generate(ids, sampling=sampling)
            work.engine.finish()
    for (found_S,) in outputs:
        text = str(tokenizer.decode(found_S, skip_special_tokens=True))
        typer.echo(" ".join(text.splitlines()))


@app.command()
def export(
    job: JobFile = Path("job.toml"),
    to: Annotated[Path, typer.Option(help="The new folder for the merged model.")] = Path("model"),
    threads: Threads = 0,
) -> None:
    """Write the trained model, merged into one, to a folder.

    \b
    Example:
        splitlearn trusted export job.toml --to model

    Where the trunk was trained (modes lora and full), the first export fetches its weights from the compute
    parties, which have to be at work, and keeps them in the run folder.

    Without a low-rank cut the folder is a plain transformers folder. With one it is loaded with
    splitlearn.load_merged("model"). Either gives the logits of the split model to the bit; but for mode
    lora, whose adapters are added to the weights, which rounds. The adapters alone, in the format of
    peft, lie in the subfolder adapters.
    """
    from parties.console import console, interruptible

    with interruptible("nothing was changed"):
        _export(_load(job, threads), to=to)
    console.print(f"merged model: {to}", markup=False)


def _export(manifest: "Job", *, to: Path) -> None:
    from splitlearn.engine.job.merging import save_run
    from splitlearn.engine.job.prepare import prepare
    from splitlearn.engine.state.checkpoints import Checkpoints
    from splitlearn.engine.state.optimiser import Stepper

    prepared = prepare(manifest)
    run, total = prepared.run, prepared.data.steps.total
    checkpoints = Checkpoints(manifest.run.folder / "checkpoints")
    held = checkpoints.held()
    newest = held[-1] if held else 0
    if newest != total and not (newest and checkpoints.noted(newest).get("stopped")):
        raise ManifestError(
            f"{manifest.run.folder} holds no finished run of {total} steps; run splitlearn trusted "
            f"train {manifest.file} to its end first"
        )
    step = checkpoints.best()[-1]
    checkpoints.load(step, model=run.local, stepper=Stepper(None, None))
    state = {
        name: tensor
        for hop in run.hops
        for group in hop.groups.values()
        for name, tensor in group.items()
    }
    if run.offer.trains_trunk:
        state |= _trained_trunk(manifest, prepared, step=step)
    save_run(to, job=manifest, prepared=prepared, state=state)


def _load(job: Path, threads: int) -> "Job":
    """The job, read before torch and its kin are imported: a typo is told at once."""
    from splitlearn.manifest import load_job

    manifest = load_job(job)
    from splitlearn.engine.state.threads import use_threads

    use_threads(threads)
    return manifest


def _scores(
    prepared: "Prepared", engine: "TrustedEngine", *, saying: "Sampling | None" = None
) -> dict[str, float]:
    from splitlearn.tasks import Scorer

    assert prepared.data.held_out is not None
    scorer = Scorer(prepared.data.held_out)
    written: list[str] = []
    for outputs in engine.evaluate(prepared.data.evaluation, saying=saying):
        scorer.add(outputs)
        if saying is not None:
            tokenizer = prepared.data.tokenizer
            written += tokenizer.batch_decode(outputs["said"], skip_special_tokens=True)
    scores = scorer.result()
    if saying is not None:
        scores["bleu"] = _bleu(prepared, written)
    return scores


def _bleu(prepared: "Prepared", written: list[str]) -> float:
    from splitlearn.tasks.rows import PairRow
    from splitlearn.translation.bleu import bleu_of

    assert prepared.data.held_out is not None
    references = [row.target for row in prepared.data.held_out.rows if isinstance(row, PairRow)]
    return bleu_of(written, references=references, cased=True).score


def _said(manifest: "Job", prepared: "Prepared", sampling: "Sampling") -> list[str]:
    """What a decoder with remote layers says of each held-out text, in their order."""
    from splitlearn.tasks.prompts import of_equal_length

    most = manifest.schedule.batch_size
    ids, texts = of_equal_length(prepared.data.evaluation, most=most)
    total = len(ids) * sampling.tokens
    with under_way(manifest, _offered(prepared, to="generate"), "generating", total) as work:
        found = work.engine.generate(ids, sampling=sampling)
        work.engine.finish()
    written: dict[int, str] = {}
    for numbers, said_BS in zip(texts, found, strict=True):
        said = prepared.data.tokenizer.batch_decode(said_BS, skip_special_tokens=True)
        written |= zip(numbers, said, strict=True)
    return [text for _, text in sorted(written.items())]


def _check_beams(manifest: "Job", beams: int) -> None:
    """One text at a time where a decoder is remote; said before anybody is dialled."""
    if beams > 1 and manifest.cut.stack != "encoder":
        raise manifest.fault(
            "cut.stack",
            f"is {manifest.cut.stack}, so peers keep keys and values of the decoder in one order; --beams "
            "takes 1 there",
        )


def _offered(prepared: "Prepared", *, to: Literal["evaluate", "generate"]) -> "Prepared":
    """The same run, offered for that only."""
    from dataclasses import replace

    first, *further = (
        replace(hop, offer=msgspec.structs.replace(hop.offer, purpose=to))
        for hop in prepared.run.hops
    )
    run = replace(prepared.run, offer=first.offer, further=tuple(further))
    return replace(prepared, run=run)


def _trained_trunk(manifest: "Job", prepared: "Prepared", *, step: int) -> "dict[str, Tensor]":
    """The trunk as the compute parties trained it: fetched once, then kept in the run folder."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    path = manifest.run.folder / _TRUNK.format(step=step)
    try:
        if path.exists():
            return load_file(path)
        offered = _offered(prepared, to="evaluate")
        with under_way(manifest, offered, "fetching", 1) as work:
            trunk = work.engine.finish(fetch=True)
        part = path.with_suffix(".part")
        save_file(trunk, part)
        part.rename(path)
    except (OSError, SafetensorError) as error:
        raise AuditError(
            f"{path} cannot be written and read back: {error}; make room there, or remove the file, "
            "and export again"
        ) from error
    return trunk

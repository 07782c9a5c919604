"""Before a run: what could be read out of it, measured on public text, and whether the policy allows it."""

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from splitlearn.errors import ManifestError, RefusedError

if TYPE_CHECKING:
    from parties.exposure import Measured
    from splitlearn.manifest import Job
    from splitlearn.policy import Leakage as Limits

__all__ = ["PREFLIGHT", "check_preflight", "preflight"]

PREFLIGHT = "preflight.json"


def preflight(
    job: Annotated[Path, typer.Argument(help="The job file, as in README.md.")] = Path("job.toml"),
    threads: Annotated[
        int, typer.Option(min=0, help="Processor threads; 0: as many as there are.")
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the attackers' budget: a first look.")
    ] = False,
) -> None:
    """Measure, before anything leaves, what the compute party could read out of this job.

    Runs the attacks on public text at the job's own cut, rank and codec, as a peer would that owns
    the public model, and on gradients of drawn labels where the job sends gradients. In a chain the
    first party's text and the last one's gradients are attacked: what the others get is computed from
    these. Nothing is sent
    and nothing private is attacked. Where the policy has a [leakage] table, more than it allows is
    refused, and training starts only after a whole preflight that stayed within it.

    \b
    Example:
        splitlearn trusted preflight job.toml

    Takes some minutes. Writes preflight.json into the run folder and one line into its log.
    """
    from parties.console import console, interruptible
    from parties.exposure import enter, measured, tables, write
    from splitlearn.manifest import load_job

    with interruptible("run it again"):
        manifest = load_job(job)
        from splitlearn import policy
        from splitlearn.audit import Log
        from splitlearn.engine.job.exposure import preflight as measure
        from splitlearn.engine.job.prepare import prepare
        from splitlearn.engine.state.threads import use_threads
        from splitlearn.identity import Identity
        from splitlearn.leakage import Budget

        use_threads(threads)
        rules = policy.load(manifest.policy.file)
        identity = Identity.load(manifest.identity.folder)
        lines = _public_lines(manifest)
        console.print("reading data and model", markup=False)
        prepared = prepare(manifest)
        with console.status("attacking; this takes minutes"):
            found = measure(
                prepared,
                lines,
                max_length=manifest.data.max_length,
                budget=Budget.quick() if quick else Budget(),
            )
    figures = measured(
        at="preflight",
        run=manifest.run.name,
        job=manifest.digest(),
        inputs=manifest.inputs_digest(),
        quick=quick,
        seed=manifest.run.seed,
        text=found.text,
        labels=found.labels,
    )
    for table in tables(figures):
        console.print(table)
    digest = write(manifest.run.folder / PREFLIGHT, figures)
    with Log.open(
        manifest.run.folder / "audit",
        origin=identity.name.dns,
        signer=identity.log_key,
        clock=time.time,
    ) as log:
        enter(log, figures, report=digest, limits=rules.leakage)
    _check(manifest, figures, rules.leakage)
    if quick and rules.leakage is not None:
        console.print("a quick look opens nothing: training asks for a whole one", markup=False)
    console.print(f"all figures: {manifest.run.folder / PREFLIGHT}", markup=False)


def _public_lines(manifest: "Job") -> list[str]:
    """Lines of the job's public text. Raises ManifestError where it has none."""
    named = (
        manifest.preflight.public_text,
        manifest.cut.lower.public_text,
        manifest.cut.upper.public_text,
    )
    path = next((path for path in named if path is not None), None)
    if path is None:
        raise manifest.fault(
            "preflight.public_text", "is missing; it takes a text file that may be known to anybody"
        )
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read as UTF-8 text: {error}") from None


def check_preflight(manifest: "Job") -> None:
    """Fail closed: where the policy limits leakage, it has to have been measured for this very job.

    A job that the policy forbids anyhow is refused for that first.
    """
    from parties.exposure import Measured
    from splitlearn import policy

    rules = policy.load(manifest.policy.file)
    for plan in policy.plans_of_job(manifest):
        for verdict in policy.foresee(rules, plan):
            if verdict.certain and verdict.refusals:
                raise verdict.refusals[0]
    if rules.leakage is None:
        return
    path = manifest.run.folder / PREFLIGHT
    wanted = (manifest.digest(), manifest.inputs_digest())
    try:
        data = path.read_bytes()
        found = msgspec.json.decode(data, type=Measured)
    except (OSError, msgspec.MsgspecError):
        data, found = b"", None
    ours = found is not None and (found.job, found.inputs) == wanted and _on_record(manifest, data)
    if found is not None and ours:
        _check(manifest, found, rules.leakage)
    if found is None or not ours or found.quick:
        raise RefusedError(
            f"policy {rules.name} limits what attacks may get, and there is no whole preflight of this "
            f"very job in {path} and its log; run splitlearn trusted preflight {manifest.file} first",
            rule="leakage.preflight",
        )


def _check(manifest: "Job", found: "Measured", limits: "Limits | None") -> None:
    """Raises RefusedError for more than the limits allow, and for what they limit and nobody can say."""
    from parties.exposure import check_limits

    check_limits(found, limits)
    limited = limits is not None and limits.max_label_auc is not None
    if limited and manifest.cut.sends_gradients and found.label_auc is None:
        raise RefusedError(
            "the policy limits max_label_auc, and our attacks do not measure labels of this task; "
            "choose mode features, or take the limit out and know what it means",
            rule="leakage.max_label_auc",
        )


def _on_record(manifest: "Job", report: bytes) -> bool:
    """Whether the run's own log says that this very file was the outcome."""
    from splitlearn.audit import Leakage, read_records

    digest = hashlib.sha256(report).hexdigest()
    return any(
        isinstance(record, Leakage) and record.report == digest
        for _, record in read_records(manifest.run.folder / "audit")
    )

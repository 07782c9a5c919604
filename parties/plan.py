"""Before a run: how long will a step take over this link, and which setting would take less?"""

import json
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitlearn.errors import ManifestError

if TYPE_CHECKING:
    from splitlearn.manifest import Job
    from splitlearn.pipeline.costs import Link, Setting
    from splitlearn.pipeline.planner import Wanted
    from splitlearn.pipeline.speeds import Speeds

__all__ = ["parse_link", "plan"]


def plan(  # noqa: PLR0913, PLR0917 - options, each by its name
    job: Annotated[Path, typer.Argument(help="The job file, as in README.md.")] = Path("job.toml"),
    link: Annotated[
        str | None,
        typer.Option(help="As 100mbit/20ms (round trip), or 20mbit,100mbit/20ms (there, back)."),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the link to the job's peer, which has to run."),
    ] = False,
    speeds: Annotated[
        Path | None,
        typer.Option(help="Speeds of both parties; without: measured here, with torch."),
    ] = None,
    save_speeds: Annotated[
        Path | None, typer.Option(help="Write what was measured here to this file.")
    ] = None,
    peer_factor: Annotated[
        float, typer.Option(min=0.001, help="So many times as fast as here is the peer.")
    ] = 1.0,
    step_s: Annotated[
        float | None, typer.Option(min=0, help="Least error and bytes with steps this short.")
    ] = None,
    step_mb: Annotated[
        float | None, typer.Option(min=0, help="No more megabytes a step, both ways together.")
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(min=0, help="No larger relative error of a codec; without: the job's own."),
    ] = None,
    keep_cuts: Annotated[bool, typer.Option("--keep-cuts", help="Leave the cuts alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw a step of the plan into this file.")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=0, help="Processor threads; 0: as many as there are.")
    ] = 0,
) -> None:
    """Say how long a step of this job will take, and find the setting that is fastest.

    Simulates the schedule that a run has, over cuts, numbers of micro-batches, windows and codecs.
    Only cuts that show no peer an earlier layer or a gradient nearer to the labels are tried. Compute
    parties of a chain are taken to share the trusted party's link, or with chain.direct to have one like
    it between them, and to be as fast as one another.

    \b
    Examples:
        splitlearn plan job.toml --link 100mbit/20ms
        splitlearn plan job.toml --measure --svg timeline.svg
        splitlearn plan job.toml --link 50mbit/80ms --speeds speeds.toml --step-mb 2 --json

    Nothing of the job is sent. With --link and --speeds no torch is needed.
    """
    from parties.console import interruptible

    if (link is None) == (not measure):
        raise ManifestError("plan takes --link RATE/ROUNDTRIP, or --measure, and not both")
    with interruptible("nothing was changed"):
        from splitlearn.manifest import load_job

        manifest = load_job(job)
        if manifest.cut.stack != "encoder":
            raise manifest.fault(
                "cut.stack",
                f"is {manifest.cut.stack}, and the planner does not know a decoder's steps yet",
            )
        wire = parse_link(link) if link is not None else _probed(manifest)
        found = _speeds(manifest, speeds, threads=threads)
        if save_speeds is not None:
            from splitlearn.pipeline.speeds import write_speeds

            save_speeds.write_text(write_speeds(found), encoding="utf-8")
        if peer_factor != 1.0:
            found = _faster(found, peer_factor)
        _report(
            manifest,
            found,
            wire,
            wanted=_wanted(manifest, found, step_s=step_s, step_mb=step_mb, error=error),
            move_cuts=not keep_cuts,
            as_json=as_json,
            svg=svg,
        )


_RATE = r"(?P<{0}>[0-9]+(?:\.[0-9]+)?)(?P<{0}_unit>kbit|mbit|gbit)"
_LINK = re.compile(
    rf"{_RATE.format('there')}(?:,{_RATE.format('back')})?/(?P<ms>[0-9]+(?:\.[0-9]+)?)ms",
    re.IGNORECASE,
)
_MBIT = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}


def parse_link(text: str) -> "Link":
    """A link as a user writes it.

    >>> parse_link("100mbit/20ms").down.bits_per_s
    100000000.0
    """
    from splitlearn.pipeline.costs import Link

    match = _LINK.fullmatch(text)
    rates = (
        []
        if match is None
        else [
            float(match[name]) * _MBIT[match[f"{name}_unit"].lower()]
            for name in ("there", "back")
            if match[name]
        ]
    )
    if match is None or not all(rates):
        raise ManifestError(
            f"--link is {text!r}; it takes a rate and a round trip, as 100mbit/20ms, or two rates, "
            "there and back, as 20mbit,100mbit/20ms"
        )
    return Link.of(mbit=rates[0], rtt_ms=float(match["ms"]), mbit_back=rates[-1])


def _probed(manifest: "Job") -> "Link":
    from parties.console import console
    from parties.reach import Reach, farewell
    from splitlearn.identity import Identity
    from splitlearn.pipeline.probe import fit_link, slowest
    from splitlearn.roles import Role

    identity = Identity.load(manifest.identity.folder)
    deadline_s, found = manifest.run.deadline_s, []
    for table in manifest.peers:
        with Reach(identity, peer=table, role=Role.COMPUTE) as reach:
            console.print(f"looking for {reach.name.dns}", markup=False)
            channel = reach.find(run=manifest.run.name, deadline_s=deadline_s)
            with farewell(channel):
                found.append(fit_link(partial(channel.probe, deadline_s=deadline_s)))
    link = slowest(found)
    console.print(
        f"link: {_rate(link.up.bits_per_s)} there, {_rate(link.down.bits_per_s)} back, round trip "
        f"{1e3 * link.round_trip_s:.1f} ms",
        markup=False,
    )
    return link


def _speeds(manifest: "Job", path: Path | None, *, threads: int) -> "Speeds":
    if path is not None:
        from splitlearn.pipeline.speeds import load_speeds

        return load_speeds(path)
    from parties.console import console
    from splitlearn import policy
    from splitlearn.codecs import NAMES
    from splitlearn.engine.job.measure import measure_job
    from splitlearn.engine.job.prepare import unsplit
    from splitlearn.engine.state.threads import use_threads

    use_threads(threads)
    console.print("measuring the model on this machine", markup=False)
    data, model = unsplit(manifest, beside=False)
    rules = policy.load(manifest.policy.file)
    return measure_job(manifest, data, model, policy=rules, codecs=NAMES)


def _faster(speeds: "Speeds", factor: float) -> "Speeds":
    """The same, with a peer so many times as fast as the file or this machine says."""

    def scaled(value: float | tuple[float, ...]) -> float | tuple[float, ...]:
        return tuple(x / factor for x in value) if isinstance(value, tuple) else value / factor

    peer = {key: scaled(value) for key, value in speeds.peer.model_dump().items()}
    return speeds.model_copy(update={"compute": speeds.peer.model_copy(update=peer)})


def _setting(manifest: "Job", speeds: "Speeds") -> "Setting":
    from splitlearn.pipeline.costs import Setting

    cut, codec, schedule = manifest.cut, manifest.codec, manifest.schedule
    first, last = manifest.trunk(layers=speeds.layers)
    manifest.spans(layers=speeds.layers)
    codecs = (codec.activation, codec.output, codec.gradient, codec.input_gradient)
    inner = (codec.inner, codec.inner_gradient) if manifest.chain else ("", "")
    for name in (*codecs, *(inner if manifest.chain else ())):
        if speeds.codec(name) is None:
            raise ManifestError(
                f"the speeds have no figures of codec {name}, which {manifest.file} names; measure "
                "them again with splitlearn plan --save-speeds"
            )
    return Setting(
        batch=schedule.batch_size,
        first=first,
        last=last,
        micro_batches=schedule.micro_batches,
        in_flight=schedule.in_flight,
        order=schedule.order,
        codecs=codecs,
        gradients=cut.sends_gradients,
        returns=cut.sends_gradients and cut.train_bottom,
        lower=cut.lower.rank,
        upper=cut.exit_rank,
        staleness=schedule.staleness,
        starts=manifest.starts,
        inner=inner,
        clips=manifest.clips_trunk,
        keeps=cut.keeps_outputs,
        direct=manifest.direct,
    )


def _wanted(
    manifest: "Job",
    speeds: "Speeds",
    *,
    step_s: float | None,
    step_mb: float | None,
    error: float | None,
) -> "Wanted":
    from splitlearn.pipeline.planner import Wanted

    if error is None:
        used = _setting(manifest, speeds).used
        error = max(found.error for name in used if (found := speeds.codec(name)) is not None)
    return Wanted(
        step_s=step_s, step_bytes=None if step_mb is None else round(1e6 * step_mb), error=error
    )


def _report(
    manifest: "Job",
    speeds: "Speeds",
    link: "Link",
    *,
    wanted: "Wanted",
    move_cuts: bool,
    as_json: bool,
    svg: Path | None,
) -> None:
    from parties.plan_view import figures, show
    from splitlearn.manifest import needs_basis
    from splitlearn.pipeline.planner import interleaved, late_messages, one, settings
    from splitlearn.pipeline.planner import plan as search
    from splitlearn.pipeline.timeline import timeline

    given = one(_setting(manifest, speeds), speeds=speeds, link=link)
    narrow = (given.setting.lower, given.setting.upper)
    pairs = [
        (a, a, g, g)
        for a in speeds.codecs
        for g in speeds.codecs
        # A basis is for whole hidden states.
        if not needs_basis(g) and not (needs_basis(a) and any(narrow))
    ]
    best, simulated = search(
        settings(given.setting, layers=speeds.layers, codecs=pairs, move_cuts=move_cuts),
        speeds=speeds,
        link=link,
        wanted=wanted,
    )
    shorter = interleaved(best or given, speeds=speeds, link=link)
    late = late_messages(given.costed.chain, deadline_s=manifest.run.deadline_s)
    if svg is not None:
        shown = best or given
        title = f"{manifest.run.name}: a step of {shown.step_s:.3g} s, simulated"
        svg.write_text(timeline(shown.run, title=title), encoding="utf-8")
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "link": asdict(link),
                    "wanted": asdict(wanted),
                    "job": figures(given, speeds),
                    "plan": None if best is None else figures(best, speeds),
                    "simulated": simulated,
                    "interleaved": None if shorter is None else figures(shorter, speeds),
                    "warnings": late,
                },
                indent=2,
            )
        )
    else:
        show(given, best, shorter, speeds=speeds, job=manifest.file)
    for said in late:
        typer.echo(f"warning: {said}", err=True)


def _rate(bits_per_s: float | None) -> str:
    return "no limit" if bits_per_s is None else f"{bits_per_s / 1e6:.1f} Mbit/s"

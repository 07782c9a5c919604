"""metrics.json of a trusted party's run folder: what a run measured, to be read by people and programs."""

from typing import TYPE_CHECKING

import msgspec

from splitlearn.errors import AuditError

if TYPE_CHECKING:
    from parties.under_way import Work
    from splitlearn.manifest import Job
    from splitlearn.policy.accounting import Guarantee

__all__ = ["METRICS", "RunMetrics", "write_metrics"]

METRICS = "metrics.json"


class RunMetrics(msgspec.Struct, frozen=True):
    """metrics.json of a run folder.

    losses: one a step, of the whole run. step_s, rows, bytes: of this process; step_s are the wall
    seconds of each of its steps, rows the tokens that crossed the cuts in each phase, sent and
    received whole frames by kind, errors the mean relative error of what each kind sent through its
    codec, channel_*: with handshakes and control. epsilon: what each protection of labels gives, with
    its delta, releases, unit and neighbouring relation. device, precision: of this party.
    """

    scores: dict[str, float]
    losses: list[float]
    step_s: list[float]
    rows: dict[str, int]
    sent: dict[str, int]
    received: dict[str, int]
    errors: dict[str, float]
    channel_sent: int
    channel_received: int
    epsilon: tuple[dict[str, str | float], ...] = ()
    device: str = "cpu"
    precision: str = "float32"


def write_metrics(
    manifest: "Job",
    work: "Work",
    scores: dict[str, float],
    protected: "tuple[Guarantee, ...]",
) -> None:
    engine = work.engine
    metrics = RunMetrics(
        scores=scores,
        losses=engine.losses,
        step_s=engine.step_s,
        rows=engine.rows,
        sent={kind.value: count for kind, count in sorted(engine.sent.items())},
        received={kind.value: count for kind, count in sorted(engine.received.items())},
        errors={kind.value: lost / n for kind, (lost, n) in sorted(engine.errors.items())},
        channel_sent=sum(party.bytes_sent for party in work.parties),
        channel_received=sum(party.bytes_received for party in work.parties),
        epsilon=tuple(msgspec.to_builtins(found) for found in protected),
        device=manifest.run.device,
        precision=manifest.run.precision,
    )
    path = manifest.run.folder / METRICS
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n")
    except OSError as error:
        raise AuditError(f"{path} cannot be written: {error}; free space there") from error

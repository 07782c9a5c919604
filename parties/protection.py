"""What a run says about its labels: before it, to whom they show; after it, what the noise was worth.

The count of releases is the log's, over all processes and restarts of the run, so that an auditor who
has the log comes to the same epsilon.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Payload, decode
from splitlearn.policy.accounting import Guarantee, gaussian, randomised_response, releases_of
from splitlearn.roles import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from splitlearn.manifest import Job

__all__ = ["guarantees", "outlook", "sentence"]


def outlook(job: "Job") -> str | None:
    """What to tell once before a run from whose payloads labels can be read; None where none leaves."""
    whom = " and ".join(peer.party for peer in job.peers)
    if job.cut.stack != "encoder":
        return (
            f"cut.stack {job.cut.stack}: what this run sends to {whom} is computed from the targets, too, in "
            "every mode; whoever owns the model can read them as well as the texts"
        )
    if not job.cut.sends_gradients:
        return None
    told = f"mode {job.cut.mode}: labels can be read from the gradients that this run sends to"
    if job.privacy.gradient_noise is not None:
        return f"{told} {whom} as far as the noise on them allows; no text is protected"
    if job.privacy.label_epsilon is not None:
        return (
            f"{told} {whom}; they are randomised ones, of epsilon "
            f"{job.privacy.label_epsilon:g} each; no text is protected"
        )
    return f"{told} {whom}; mode features sends none"


def guarantees(job: "Job", *, log: Path) -> tuple[Guarantee, ...]:
    """Of every protection that the job asks for, after a run whose log lies in the folder `log`.

    Of a chain's logs the last one counts: each noise leaves there first, and what any other party gets
    is computed from it.
    Each holds by itself: the labels have the better one. Raises AuditError if the log cannot be read.
    """
    privacy = job.privacy
    found = []
    if privacy.label_epsilon is not None:
        found.append(randomised_response(privacy.label_epsilon))
    if privacy.gradient_noise is not None:
        sent = [
            (r.dp.epoch, r.step or 0, r.micro_batch or 0)
            for r in _gradients(log)
            if r.run == job.run.name and r.dp is not None
        ]
        releases = releases_of(sent)
        found.append(gaussian(noise=privacy.gradient_noise, delta=privacy.delta, releases=releases))
    return tuple(found)


def sentence(found: Guarantee) -> str:
    """One line for a person."""
    if found.mechanism == "randomised-response":
        return (
            f"labels: epsilon {found.epsilon:.4g} each, by randomised response drawn once; "
            "the same labels in another run folder are drawn anew, and epsilons add up"
        )
    times = "1 release" if found.releases == 1 else f"{found.releases} releases"
    return (
        f"labels: epsilon {found.epsilon:.4g} at delta {found.delta:g} for the labels of one example "
        f"replaced by others, by noise over {times}"
    )


def _gradients(log: Path) -> "Iterator[Payload]":
    for line, whole in read_lines(log):
        if whole and b'"gradient"' in line:  # a log is long, and this many lines are few
            record = decode(line)
            if (
                isinstance(record, Payload)
                and record.kind is Kind.GRADIENT
                and record.direction == "out"
            ):
                yield record

"""What attacks got, for people and for files: tables, one JSON form, and the line in the log.

Every figure is a lower bound, and every table says so.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from splitlearn.errors import AuditError, RefusedError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from splitlearn.audit import Log
    from splitlearn.leakage import LabelRecovery, LabelReport, Recovery, TextReport
    from splitlearn.policy import Leakage as Limits

__all__ = ["Measured", "check_limits", "enter", "measured", "tables", "write"]

LOWER_BOUND = "a lower bound: a better attacker gets more"


class Attack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attack or baseline. Shares are from 0 to 1; what an attack does not give is none."""

    name: str
    version: int
    seed: int
    budget: dict[str, float]
    scored: int
    top1: float
    top20: float | None = None
    unseen_top1: float | None = None
    slots_top1: float | None = None
    auc: float | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of measured leakage.

    job, inputs: digests of the job and of what goes in, in a preflight; run: its name. quick: with a
    tenth of the attackers' budget. text, labels: strongest attack first, none
    where nothing was attacked; *_baselines: what is right without looking.
    """

    version: Literal[1] = 1
    at: Literal["preflight", "canary"]
    run: str
    job: str = ""
    inputs: str = ""
    quick: bool
    suite: int
    seed: int
    text: tuple[Attack, ...] = ()
    text_baselines: tuple[Attack, ...] = ()
    labels: tuple[Attack, ...] = ()
    labels_baselines: tuple[Attack, ...] = ()

    @property
    def tokens(self) -> float | None:
        """Share of tokens that the strongest attack recovered."""
        return self.text[0].top1 if self.text else None

    @property
    def label_auc(self) -> float | None:
        """How well the strongest attack ranked the labels."""
        return self.labels[0].auc if self.labels else None


def measured(
    *,
    at: Literal["preflight", "canary"],
    run: str,
    seed: int,
    text: "TextReport | None",
    labels: "LabelReport | None",
    quick: bool,
    job: str = "",
    inputs: str = "",
) -> Measured:
    """The file's form of what the attacks said."""
    from splitlearn.leakage import SUITE_VERSION

    return Measured(
        at=at,
        run=run,
        job=job,
        inputs=inputs,
        quick=quick,
        suite=SUITE_VERSION,
        seed=seed,
        text=tuple(map(_attack, text.attacks)) if text else (),
        text_baselines=tuple(map(_attack, text.baselines)) if text else (),
        labels=tuple(map(_attack, labels.attacks)) if labels else (),
        labels_baselines=tuple(map(_attack, labels.baselines)) if labels else (),
    )


def _attack(one: "Recovery | LabelRecovery") -> Attack:
    from splitlearn.leakage import LabelRecovery

    attack = partial(
        Attack,
        name=one.attack,
        version=one.version,
        seed=one.seed,
        budget=dict(one.budget),
        top20=one.top20,
    )
    if isinstance(one, LabelRecovery):
        return attack(scored=one.examples, top1=one.accuracy, auc=one.auc)
    return attack(
        scored=one.tokens, top1=one.top1, unseen_top1=one.unseen_top1, slots_top1=one.slots_top1
    )


def write(path: Path, found: Measured) -> str:
    """Write the file; its SHA-256 in hex. Raises AuditError if it cannot be written."""
    data = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise AuditError(f"{path} cannot be written: {error.strerror}; make room there") from error
    return hashlib.sha256(data).hexdigest()


def enter(log: "Log", found: Measured, *, report: str, limits: "Limits | None") -> None:
    """Put the headline on record and sign the head. report: SHA-256 of the file."""
    from splitlearn.audit import Leakage

    log.append(
        Leakage(
            run=found.run,
            at=found.at,
            suite=found.suite,
            seed=found.seed,
            scored=found.text[0].scored if found.text else 0,
            tokens=found.tokens,
            tokens_by=found.text[0].name if found.text else "",
            labels=found.label_auc,
            labels_by=found.labels[0].name if found.labels else "",
            tokens_limit=limits.max_token_recovery if limits else None,
            labels_limit=limits.max_label_auc if limits else None,
            report=report,
        )
    )
    log.checkpoint()


def check_limits(found: Measured, limits: "Limits | None") -> None:
    """Raises RefusedError where an attack got more than the policy allows."""
    if limits is None:
        return
    tokens, labels = found.tokens, found.label_auc
    for what, got, limit, rule, remedy in (
        (
            "tokens",
            tokens,
            limits.max_token_recovery,
            "leakage.max_token_recovery",
            "narrow cut.lower",
        ),
        (
            "label ranking",
            labels,
            limits.max_label_auc,
            "leakage.max_label_auc",
            "choose mode features",
        ),
    ):
        if limit is not None and got is not None and got > limit:
            raise RefusedError(
                f"the attacks got {what} of {got:.2f} where the policy allows {rule} = {limit:g}; "
                f"cut later, {remedy}, or change the policy and know what it means",
                rule=rule,
            )


def tables(found: Measured) -> "list[RenderableType]":
    """Both tables, strongest attack first."""
    from rich.table import Table

    made: list[RenderableType] = []
    if found.text:
        table = Table(
            *("attack on the text", "tokens", "in first 20", "unseen", "numbers, addresses"),
            title=f"recovered of {found.text[0].scored} tokens",
            caption=LOWER_BOUND,
        )
        for one in (*found.text, *found.text_baselines):
            shares = (one.top1, one.top20, one.unseen_top1, one.slots_top1)
            table.add_row(one.name, *map(_share, shares))
        made.append(table)
    if found.labels:
        table = Table(
            *("attack on the labels", "AUC", "right"),
            title=f"labels of {found.labels[0].scored} examples, from their gradients",
            caption=LOWER_BOUND,
        )
        for one in (*found.labels, *found.labels_baselines):
            table.add_row(one.name, "" if one.auc is None else f"{one.auc:.3f}", _share(one.top1))
        made.append(table)
    return made


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"

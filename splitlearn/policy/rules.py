"""May this payload leave, or come in, in this form? A policy file's rules, and the yes or no they give.

An allow-list: what no rule names is refused. Knows shapes, dtypes and counts, never values; never
sends and never logs.
"""

import difflib
import hashlib
import re
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from splitlearn.errors import ManifestError, RefusedError
from splitlearn.roles import MAY_SEND, Kind, Role

__all__ = [
    "STEP_KINDS",
    "Direction",
    "Facts",
    "Guard",
    "Leakage",
    "Ledger",
    "Policy",
    "Rule",
    "load",
    "parse",
]

Direction: TypeAlias = Literal["in", "out"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
Codec = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9+._-]{0,63}\*?$")]
Dtype = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]

# Kinds that carry the rows of one micro-batch.
STEP_KINDS = frozenset({Kind.ACTIVATION, Kind.OUTPUT, Kind.GRADIENT, Kind.INPUT_GRADIENT})
# A policy of a hundred rules takes 30 KiB.
MAX_FILE_BYTES = 1024 * 1024


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One permission. A limit that is not written is zero, or, where it says so, none.

    direction, peer: which way, and the role at the other end. dtypes: of parts on the wire. codecs:
    how rows may be written; `transform-e*` stands for all names that begin so. max_columns: last
    dimension before encoding, so the rank of a low-rank cut. max_length: tokens of the longest example.
    max_run_bytes: whole frames in one run, restarts included. max_row_norm: Euclidean, of what comes
    in; none if not written. linkable: whether examples may bear pseudonyms, the same in every epoch.
    generating: whether rows may be of a text that the model is going on with.
    """

    id: Name
    direction: Direction
    peer: Role
    kinds: tuple[Kind, ...]
    max_message_bytes: Count
    max_run_bytes: Count
    dtypes: tuple[Dtype, ...] = ()
    codecs: tuple[Codec, ...] = ()
    max_rows: Count = 0
    max_columns: Count = 0
    max_examples: Count = 0
    max_length: Count = 0
    max_row_norm: Positive | None = None
    # Left out of the canonical form where it is not written: older policies keep their digests.
    linkable: bool | msgspec.UnsetType = msgspec.UNSET
    generating: bool | msgspec.UnsetType = msgspec.UNSET

    def allows(self, codec: str) -> bool:
        """Whether the rule names this codec, or its beginning with a `*`."""
        return any(
            codec.startswith(name[:-1]) if name.endswith("*") else codec == name
            for name in self.codecs
        )


class Leakage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the attacks of a preflight may get at most; no limit where none is written.

    max_token_recovery: share of the tokens that were recovered, 0 to 1. max_label_auc: how well the
    labels were ranked, where 0.5 is guessing and 1 is all of them.
    """

    max_token_recovery: Share | None = None
    max_label_auc: Share | None = None


class Guard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How plainly one number of each example that leaves may tell its label, and what to do then.

    label_correlation: the AUC, turned so that it is at least 0.5, from which on something is done.
    window: newest examples that are looked at together.
    """

    label_correlation: Annotated[float, msgspec.Meta(gt=0.5, le=1)]
    action: Literal["warn", "deny"] = "warn"
    window: Annotated[int, msgspec.Meta(ge=64, le=4_096)] = 256


class Policy(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """All permissions of one party, and what is watched beyond them.

    What is not written is left out of `canonical`: a policy from before a table existed keeps its
    digest.
    """

    name: Name
    rules: tuple[Rule, ...]
    leakage: Leakage | None = None
    guard: Guard | None = None

    @property
    def canonical(self) -> bytes:
        """The policy as JSON in its one spelling; `parse` reads it back."""
        return msgspec.json.encode(self, order="deterministic")

    @property
    def digest(self) -> str:
        """SHA-256 of `canonical` in hex: comments and layout of the file do not count."""
        return hashlib.sha256(self.canonical).hexdigest()

    def rule_for(self, kind: Kind, *, direction: Direction, peer: Role) -> Rule | None:
        """The one rule about such a message, if there is one. Ask before a run begins."""
        for rule in self.rules:
            if rule.direction == direction and rule.peer is peer and kind in rule.kinds:
                return rule
        return None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy judges of a message, all of it also in the log's record.

    Zero and empty where there is none or it is not known yet. rows, columns: of the tensor before
    encoding; examples, longest: of the micro-batch; wire_bytes: the whole frame; linked: its
    examples bear pseudonyms; generated: its rows are of a text that is gone on with.
    """

    direction: Direction
    peer: Role
    kind: Kind
    codec: str = ""
    dtypes: frozenset[str] = frozenset()
    rows: int = 0
    columns: int = 0
    examples: int = 0
    longest: int = 0
    wire_bytes: int = 0
    linked: bool = False
    generated: bool = False


class Ledger:
    """A policy and what its budgets have been spent on in one run. Doors to several peers share one."""

    def __init__(self, policy: Policy, *, spent: Mapping[str, int]) -> None:
        """spent: bytes by rule so far, as the log counted them."""
        self.policy = policy
        self._spent = dict(spent)
        self._taking = threading.Lock()

    def take(self, facts: Facts) -> Rule:
        """Judge a whole message and count its bytes, as one: no other passes on the same bytes."""
        with self._taking:
            rule = self.judge(facts)
            self.charge(rule, wire_bytes=facts.wire_bytes)
            return rule

    def judge(self, facts: Facts) -> Rule:
        """The rule that allows the message. Raises RefusedError that names the one that does not."""
        policy = self.policy
        rule = policy.rule_for(facts.kind, direction=facts.direction, peer=facts.peer)
        if rule is None:
            raise RefusedError(
                f"policy {policy.name} has no rule that lets {_named(facts)} pass; if it should, add "
                "one to the policy file",
                rule="no-rule",
            )
        for fault in self.faults(facts, rule=rule):
            raise fault
        return rule

    def faults(self, facts: Facts, *, rule: Rule) -> Iterator[RefusedError]:
        """Every limit of its rule that the message goes over. Ask `judge` for a verdict."""
        policy = self.policy
        if facts.codec and not rule.allows(facts.codec):
            yield RefusedError(
                f"policy {policy.name} refuses {_named(facts)} in codec {facts.codec}; rule {rule.id} "
                f"allows {', '.join(rule.codecs) or 'none'}",
                rule=f"{rule.id}.codecs",
            )
        if not facts.dtypes <= set(rule.dtypes):
            yield RefusedError(
                f"policy {policy.name} refuses {_named(facts)} with parts of "
                f"{', '.join(sorted(facts.dtypes))}; rule {rule.id} allows "
                f"{', '.join(rule.dtypes) or 'none'}",
                rule=f"{rule.id}.dtypes",
            )
        if facts.linked and rule.linkable is not True:
            yield RefusedError(
                f"policy {policy.name} refuses {_named(facts)} with pseudonyms of its examples, by which "
                f"they are told again in every epoch; rule {rule.id} has no linkable = true",
                rule=f"{rule.id}.linkable",
            )
        if facts.generated and rule.generating is not True:
            yield RefusedError(
                f"policy {policy.name} refuses {_named(facts)} of a text that the model goes on with; "
                f"rule {rule.id} has no generating = true",
                rule=f"{rule.id}.generating",
            )
        spent = self._spent.get(rule.id, 0)
        for limit, value, allowed in (
            ("max_rows", facts.rows, rule.max_rows),
            ("max_columns", facts.columns, rule.max_columns),
            ("max_examples", facts.examples, rule.max_examples),
            ("max_length", facts.longest, rule.max_length),
            ("max_message_bytes", facts.wire_bytes, rule.max_message_bytes),
            ("max_run_bytes", spent + facts.wire_bytes, rule.max_run_bytes),
        ):
            if value > allowed:
                yield RefusedError(
                    f"policy {policy.name} refuses {_named(facts)}: {value} is over {limit} = "
                    f"{allowed} of rule {rule.id}",
                    rule=f"{rule.id}.{limit}",
                )

    def charge(self, rule: Rule, *, wire_bytes: int) -> None:
        """Count a message that passed."""
        self._spent[rule.id] = self._spent.get(rule.id, 0) + wire_bytes


def load(path: Path) -> Policy:
    """Read a policy file (TOML). Raises ManifestError with one sentence that says what to mend."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        document = tomllib.loads(data[:MAX_FILE_BYTES].decode())
    except OSError as error:
        raise ManifestError(f"policy {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"policy {path} is not TOML: {error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ManifestError(f"policy {path} is larger than {MAX_FILE_BYTES} bytes")
    return _checked(document, where=f"policy {path}")


def parse(text: str | bytes) -> Policy:
    """Read a policy back from its canonical form, as a log holds it. Raises ManifestError."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ManifestError(f"the policy in the log is not JSON: {error}") from error
    return _checked(document, where="the policy in the log")


# What must be above zero for a rule about these kinds to permit anything at all.
_NEEDED = ("codecs", "dtypes", "max_rows", "max_columns", "max_examples", "max_length")


def _checked(document: object, *, where: str) -> Policy:
    try:
        policy = msgspec.convert(document, Policy)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{where}: {_explain(str(error))}") from None
    taken: dict[tuple[str, str, str], str] = {}
    ids = set()
    for rule in policy.rules:
        if rule.id in ids:
            raise ManifestError(f"{where}: two rules have the id {rule.id!r}; ids stand in the log")
        ids.add(rule.id)
        _check_rule(rule, where=f"{where}: rule {rule.id}")
        for kind in rule.kinds:
            other = taken.setdefault((rule.direction, rule.peer, kind), rule.id)
            if other != rule.id:
                raise ManifestError(
                    f"{where}: rules {other} and {rule.id} are both about {kind} {rule.direction} "
                    f"with a {rule.peer} party; one message has one rule"
                )
    return policy


def _check_rule(rule: Rule, *, where: str) -> None:
    if not rule.kinds or len(set(rule.kinds)) != len(rule.kinds):
        raise ManifestError(f"{where}: kinds must name each kind once, and at least one")
    here = 1 if rule.direction == "out" else 0
    for kind in rule.kinds:
        ends = {pair[here] for pair in MAY_SEND[kind]}
        if rule.peer not in ends:
            raise ManifestError(
                f"{where}: no {kind} goes {rule.direction} with a {rule.peer} party; expected "
                f"{' or '.join(sorted(ends))}"
            )
        if kind in STEP_KINDS or kind is Kind.IDS:
            missing = [name for name in _NEEDED if not getattr(rule, name)]
            if missing:
                raise ManifestError(
                    f"{where}: a rule about {kind} also needs {', '.join(missing)}, above zero"
                )


def _named(facts: Facts) -> str:
    way = "to" if facts.direction == "out" else "from"
    return f"{facts.kind} {way} a {facts.peer} party"


def _explain(problem: str) -> str:
    """msgspec's sentence with the closest key we know, where a key is not one of ours."""
    found = re.match(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?(.*)`)?", problem)
    if found is None:
        return problem
    key, place = found[1], found[2] or ""
    table = next((table for name, table in _TABLES.items() if place.startswith(name)), Policy)
    allowed = table.__struct_fields__
    near = difflib.get_close_matches(key, allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown key {key!r} in {place or 'the file'}; {hint}allowed are {', '.join(allowed)}"


# What stands in a policy, by the place that msgspec gives an unknown key there.
_TABLES: Mapping[str, type[msgspec.Struct]] = {"rules": Rule, "leakage": Leakage, "guard": Guard}

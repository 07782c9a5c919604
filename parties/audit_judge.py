"""How an auditor derives a verdict again: the policy that stands in the log, on the facts in its records."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitlearn.audit import Judge, Payload

__all__ = ["judge_of"]


def judge_of(policy_text: str, spent: Mapping[str, int] = MappingProxyType({})) -> "Judge":
    """A judge that derives each recorded verdict again from the policy in the log, budgets included.

    spent: bytes that each rule had let through in the run before. Raises ManifestError for a text
    that is no policy.
    """
    from splitlearn import policy
    from splitlearn.errors import RefusedError

    ledger = policy.Ledger(policy.parse(policy_text), spent=spent)

    def judge(payload: "Payload") -> str | None:
        facts = policy.Facts(
            direction=payload.direction,
            peer=payload.peer_role,
            kind=payload.kind,
            codec=payload.codec,
            dtypes=frozenset(part.dtype for part in payload.parts),
            rows=payload.rows,
            columns=payload.columns,
            examples=payload.examples,
            longest=payload.longest,
            generated=payload.kind == "activation" and payload.phase == "generate",
            wire_bytes=payload.wire_bytes,
        )
        try:
            rule = ledger.judge(facts)
        except RefusedError as error:
            return f"recorded as allowed, but {error}"
        ledger.charge(rule, wire_bytes=payload.wire_bytes)
        return (
            None
            if payload.rules == (rule.id,)
            else f"rule {rule.id} allows it, not {payload.rules}"
        )

    return judge

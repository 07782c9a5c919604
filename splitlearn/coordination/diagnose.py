"""Why does a node not come to its coordinator? One check per cause, as in identity's own."""

from pathlib import Path

from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.health import ask_health, check_clock
from splitlearn.errors import SplitLearnError
from splitlearn.identity import Finding
from splitlearn.identity.diagnose import check_port
from splitlearn.identity.exchange import DEADLINE_S

__all__ = ["examine_coordinator"]


def examine_coordinator(
    folder: Path, *, address: str, party: str | None = None, deadline_s: float = DEADLINE_S
) -> tuple[Finding, ...]:
    """Port, coordinator and clock, as far as each makes sense after the one before.

    folder: a generator's identity, which has been examined. address: the coordinator's "host:port".
    party: who alone may answer there.
    """
    port = check_port(address, deadline_s=deadline_s)
    if not port.ok:
        return (port,)
    try:
        fresh = FreshIdentity(folder)
        ahead_s = ask_health(address, fresh=fresh, party=party, deadline_s=deadline_s)
    except SplitLearnError as error:
        remedy = "compare CA, names and deny-list with the people who run the coordinator"
        return port, _failed("coordinator", error, remedy=remedy)
    taken = Finding(name="coordinator", ok=True, what=f"{address} is ours and takes this node")
    try:
        clock = Finding(name="coordinator's clock", ok=True, what=check_clock(ahead_s))
    except SplitLearnError as error:
        clock = _failed("coordinator's clock", error, remedy="set the clock that is wrong")
    return port, taken, clock


def _failed(name: str, error: SplitLearnError, *, remedy: str) -> Finding:
    return Finding(name=name, ok=False, what=str(error), remedy=remedy, exit_code=error.exit_code)

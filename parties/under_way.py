"""A trusted party's run under way: identity, policy, logs, peers and engine, and the end of all of them."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parties.console import Display
    from parties.lines import InHand
    from splitlearn.engine.events import Observe
    from splitlearn.engine.job.prepare import Prepared
    from splitlearn.engine.trusted.engine import TrustedEngine
    from splitlearn.manifest import Job

__all__ = ["Work", "under_way"]


@dataclass
class Work:
    """A run under way."""

    engine: "TrustedEngine"
    parties: "list[InHand]"
    display: "Display"


@contextmanager
def under_way(
    manifest: "Job", prepared: "Prepared", what: str, total: int, *observers: "Observe"
) -> Iterator[Work]:
    """Identity, policy, logs, peers and engine of a run, and the end of all of them."""
    from parties.console import Display, console
    from parties.lines import InHand, Terms, logs_of
    from parties.reach import Reach, farewell
    from splitlearn import policy
    from splitlearn.audit import Log
    from splitlearn.engine.events import all_of
    from splitlearn.engine.job.prepare import check_policy
    from splitlearn.engine.state.checkpoints import Checkpoints
    from splitlearn.engine.trusted.engine import TrustedEngine
    from splitlearn.engine.trusted.line import Peer
    from splitlearn.identity import Identity
    from splitlearn.roles import Role

    rules = policy.load(manifest.policy.file)
    check_policy(rules, *(hop.offer for hop in prepared.run.hops))
    identity = Identity.load(manifest.identity.folder)
    with ExitStack() as stack:
        logs = [
            stack.enter_context(
                Log.open(folder, origin=identity.name.dns, signer=identity.log_key, clock=time.time)
            )
            for folder in logs_of(manifest)
        ]
        reaches = [
            stack.enter_context(
                Reach(identity, peer=table, role=Role.COMPUTE, fresh=table is manifest.peer)
            )
            for table in manifest.peers
        ]
        # What a rule lets through in a run it lets through to all parties together.
        spent: Counter[str] = Counter()
        for log in logs:
            spent.update(log.spent(manifest.run.name))
        terms = Terms(
            rules=rules,
            ledger=policy.Ledger(rules, spent=spent),
            me=identity.name,
            vocabulary=prepared.model.config.vocab_size,
        )
        parties: list[InHand] = []
        for reach, log in zip(reaches, logs, strict=True):
            run, deadline_s = manifest.run.name, manifest.run.deadline_s
            party = InHand(reach, log=log, terms=terms, run=run, deadline_s=deadline_s)
            parties.append(party)
            stack.enter_context(farewell(party))
        display = stack.enter_context(Display(what, total=total))
        engine = TrustedEngine(
            prepared.run,
            peers=[Peer(party.channel, party.open_gate, party.again) for party in parties],
            checkpoints=Checkpoints(manifest.run.folder / "checkpoints"),
            observe=all_of(display, *observers),
        )
        try:
            yield Work(engine, parties, display)
        except BaseException as error:
            engine.end(error)
            raise
        finally:
            for said in [said for party in parties for said in party.warnings]:
                console.print(f"warning: {said}", markup=False)
        engine.end(None)

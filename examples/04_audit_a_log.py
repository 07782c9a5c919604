"""Audit a log: write one, verify it, change one byte of it, and verify it again.

Every party keeps a log of all that it sent and received: kinds, shapes, bytes, the rule that allowed
it, and a commitment to the exact bytes. Never content. Each line is hashed into a tree whose head is
signed, so a line can neither be changed nor removed without a trace. An auditor needs the log and
the party's public key, and neither torch nor trust:

    splitlearn audit verify out/demo/clinic/run/audit

This example does the same from Python:

    python examples/04_audit_a_log.py
"""

import sys
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from parties.auditor import judge_of
from splitlearn import policy
from splitlearn.audit import Log, verify
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.wire.messages import (
    BottleneckSpec,
    CodecSpec,
    CutSpec,
    Offer,
    OptimiserSpec,
    ScheduleSpec,
    TrunkModel,
)

ROOM = Path(tempfile.mkdtemp(prefix="splitlearn-example-"))
FOLDER = ROOM / "audit"

# The log is signed with a key of the party's own; `splitlearn join` makes one. Its public half goes
# to the auditor by a way of its own: a key that lies beside the log proves little.
SIGNER = Ed25519PrivateKey.generate()

# A policy is an allow-list. This one lets a party say what its job is, and nothing else.
RULES = """
name = "tiny"

[[rules]]
id = "words"
direction = "out"
peer = "compute"
kinds = ["offer"]
max_message_bytes = 65_536
max_run_bytes = 1_048_576
"""
(ROOM / "policy.toml").write_text(RULES)

# The job as a compute party is told it. A real one is made from job.toml; see README.md.
NONE = BottleneckSpec("none", 0)
OFFER = Offer(
    run="audit-example",
    conversation="0" * 32,
    job="0" * 64,
    salt="1" * 64,
    purpose="train",
    mode="features",
    returns_input_gradient=False,
    model=TrunkModel("bert", {"hidden_size": 32}),
    cut=CutSpec(1, 3, NONE, NONE),
    codecs=CodecSpec("int8+zstd", "fp16", "fp16", "fp16"),
    optimiser=OptimiserSpec("adamw", 1e-4, 0.0, 0.9, 0.999, 1e-8),
    schedule=ScheduleSpec("linear", 0, 10),
    seed=0,
    layers="2" * 64,
    bottlenecks="3" * 64,
    bases="4" * 64,
    held=(),
)


def show(title: str) -> None:
    """Verify the log, with the policy's verdicts derived again, and print what was found."""
    report = verify(FOLDER, verifier_key=key, judge_of=judge_of)
    print(f"{title}: exit {int(report.exit)} ({report.exit.name.lower()})")
    print(f"    {report.records} records, {report.covered} of them under a signed head")
    for kind, count in report.messages_by_kind.items():
        print(f"    {kind}: {count} message, {report.bytes_by_kind[kind]} bytes")
    for finding in report.findings:
        print(f"    {finding.name}: {finding.sentence}")


with Log.open(FOLDER, origin="trusted.clinic.example.org", signer=SIGNER, clock=time.time) as log:
    key = log.verifier_key
    gate = Gate.open(
        policy.load(ROOM / "policy.toml"),
        log=log,
        session=Session(me=Role.TRUSTED, peer=Role.COMPUTE),
        me=PartyName(federation="example.org", party="clinic", role=Role.TRUSTED),
        peer=PartyName(federation="example.org", party="gpuhost", role=Role.COMPUTE),
        binding="4" * 64,  # fingerprint of the peer's certificate
        offer=OFFER,
        software="example",
    )
    # What a gate releases is logged before anybody can send it.
    released = gate.release(Kind.OFFER, meta=OFFER)
    gate.close(outcome="done")
print(f"released {released.kind}, {len(released.raw)} bytes")
show("untouched")

# Somebody turns one letter of one line: the commitment to what was sent.
(segment,) = (FOLDER / "log").iterdir()
honest = segment.read_bytes()
place = honest.index(b'"commit":"') + len(b'"commit":"')
forged = bytearray(honest)
forged[place] ^= 1
segment.write_bytes(forged)
show("one byte changed")

# Put back as it was, the log is whole again: nothing but the bytes themselves counts.
segment.write_bytes(honest)
show("put back")

print("torch was imported:", "torch" in sys.modules)

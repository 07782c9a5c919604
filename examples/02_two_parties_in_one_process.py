"""Two parties in one process: the whole library, but for the network.

A clinic (trusted party) fine-tunes a tiny BERT with the help of gpuhost (compute party). Everything is
what two organisations would use: sessions, gates, policies, logs, codecs, checkpoints. Only the
channel between them is a queue in memory, and the compute party is a thread.

    python examples/02_two_parties_in_one_process.py

What you should see: the loss falls, int8 keeps the bytes small, and both logs verify.
"""

import tempfile
import threading
import time
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from transformers import BertConfig, BertForSequenceClassification

import parties
from parties.auditor import judge_of
from splitlearn import policy
from splitlearn.audit import Log, verify
from splitlearn.channel import pair
from splitlearn.engine.compute.engine import ComputeEngine, RunPlace
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.trusted.engine import TrustedEngine
from splitlearn.engine.trusted.line import Peer
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.roles import Role
from splitlearn.session import Session
from splitlearn.split import (
    GROUPS,
    Bottleneck,
    Cut,
    digest,
    factor,
    freeze,
    spec_of,
    split,
    trunk_model,
    trunk_state,
)
from splitlearn.tasks import Batch
from splitlearn.wire.messages import CodecSpec, Offer, OptimiserSpec, ScheduleSpec

torch.manual_seed(0)
torch.set_num_threads(1)
ROOM = Path(tempfile.mkdtemp(prefix="splitlearn-example-"))
POLICIES = Path(str(parties.__file__)).parent / "policies"
CLINIC = PartyName(federation="example.org", party="clinic", role=Role.TRUSTED)
GPUHOST = PartyName(federation="example.org", party="gpuhost", role=Role.COMPUTE)

# The model and the cut: layers 1 and 2 go to gpuhost, and 8 numbers a token come back instead of 32.
# `splitlearn trusted train` does all of this from a job.toml.
sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=100, num_hidden_layers=4, **sizes))
blueprint = trunk_model(model)  # all that gpuhost has to know to build its layers, empty
cut = Cut(1, 3, upper=Bottleneck("sft", 8))
factor(model, cut=cut, bases={})
freeze(model, cut=cut, mode="full", train_bottom=False)
local, trunk = split(model, cut=cut)
weights = {group: trunk_state(trunk, group=group) for group in GROUPS}

# The offer is the first message, and the only description of the job that leaves the clinic.
offer = Offer(
    run="example",
    conversation="0" * 32,  # the engine draws another for each conversation
    job="0" * 64,  # digest of the job file
    salt="1" * 64,  # random in a real run: keys the log's commitments to what was sent
    purpose="train",
    mode="full",
    returns_input_gradient=False,  # the bottom is frozen
    model=blueprint,
    cut=spec_of(cut),
    codecs=CodecSpec("int8+zstd", "fp16", "fp16", "fp16"),
    optimiser=OptimiserSpec("adamw", 2e-3, 0.01, 0.9, 0.999, 1e-8),
    schedule=ScheduleSpec("constant", 0, 12),
    seed=0,
    layers=digest(weights["layers"]),
    bottlenecks=digest(weights["bottlenecks"]),
    bases=digest({}),
    held=(),
)
run = TrustedRun(
    offer=offer,
    local=local,
    groups=weights,
    entrance=cut.entrance(32),
    exit=cut.exit(32),
    packed=True,  # padding is not sent
    every=6,  # steps between checkpoints
    deadline_s=20.0,
)


def open_log(name: PartyName) -> Log:
    """Each party signs its own log with its own key."""
    folder, signer = ROOM / name.party / "audit", Ed25519PrivateKey.generate()
    return Log.open(folder, origin=name.dns, signer=signer, clock=time.time)


def open_gate(log: Log, offer: Offer, session: Session, *, rules: str) -> Gate:
    """The one door of a party: nothing leaves that its own policy does not allow."""
    me, peer = (CLINIC, GPUHOST) if session.me is Role.TRUSTED else (GPUHOST, CLINIC)
    more = {"binding": "0" * 64, "software": "example"}  # in memory there is no certificate to bind
    rule = policy.load(POLICIES / rules)
    return Gate.open(rule, log=log, session=session, me=me, peer=peer, offer=offer, **more)


# Twelve sentences of random words, in two micro-batches; the label is the parity of the first word.
words = torch.randint(5, 100, (2, 6, 10))
halves = [
    Batch({"input_ids": ids}, labels={"labels": ids[:, 0] % 2}, lengths=(10,) * 6, items=6)
    for ids in words
]

with open_log(CLINIC) as clinic_log, open_log(GPUHOST) as gpuhost_log:
    to_gpuhost, to_clinic = pair(names=("clinic", "gpuhost"))
    gpuhost = ComputeEngine(
        to_clinic,
        open_gate=lambda told, session: open_gate(gpuhost_log, told, session, rules="compute.toml"),
        place_of=lambda _: RunPlace(ROOM / "gpuhost/checkpoints", ROOM / "gpuhost/weights"),
        deadline_s=20.0,
        observe=lambda _: None,
    )
    thread = threading.Thread(target=gpuhost.serve)
    thread.start()

    clinic = TrustedEngine(
        run,
        peers=[
            Peer(
                to_gpuhost,
                lambda told, session: open_gate(clinic_log, told, session, rules="demo.toml"),
            )
        ],
        checkpoints=Checkpoints(ROOM / "clinic/checkpoints"),
        observe=print,
    )
    clinic.train(lambda _: halves)  # two micro-batches a step, under way at the same time
    trained = clinic.finish(fetch=True)  # the trunk comes home
    clinic.end(None)
    thread.join()

print(f"the trunk came back with {sum(t.numel() for t in trained.values())} trained weights")
print(f"loss {clinic.losses[0]:.3f} at first, {clinic.losses[-1]:.3f} at the end")
assert clinic.losses[-1] < clinic.losses[0]
for party in ("clinic", "gpuhost"):
    report = verify(ROOM / party / "audit", judge_of=judge_of)
    print(f"log of {party}: {report.records} records, {report.exit.name.lower()}")
    assert report.ok, report.findings

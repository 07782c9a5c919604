"""Your own loop: transformers' Trainer over a trunk that another party runs.

The model is an ordinary transformers model whose middle layers are a RemoteTrunk. Trainer knows nothing
of it: what it forwards crosses the clinic's gate to gpuhost, and what it backwards crosses it too. The
same Trainer over the whole model, in one process, has the same losses to the bit.

    python examples/08_your_own_loop.py

What you should see: the same losses twice, and the same evaluation.
"""

import copy
import tempfile
import threading
import time
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import parties
from splitlearn import policy
from splitlearn.audit import Log
from splitlearn.channel import pair
from splitlearn.engine.compute.engine import ComputeEngine, RunPlace
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.trusted.line import Peer
from splitlearn.engine.trusted.remote import RemoteTrunk
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.roles import Role
from splitlearn.session import Session
from splitlearn.split import GROUPS, Cut, digest, freeze, spec_of, split, trunk_model, trunk_state
from splitlearn.wire.messages import CodecSpec, Offer, OptimiserSpec, ScheduleSpec

torch.manual_seed(0)
torch.set_num_threads(1)
ROOM = Path(tempfile.mkdtemp(prefix="splitlearn-example-"))
POLICIES = Path(str(parties.__file__)).parent / "policies"
CLINIC = PartyName(federation="example.org", party="clinic", role=Role.TRUSTED)
GPUHOST = PartyName(federation="example.org", party="gpuhost", role=Role.COMPUTE)
STEPS, MICRO_BATCHES = 10, 2
SPECS = {
    "optimiser": OptimiserSpec("adamw", 1e-3, 0.01, 0.9, 0.999, 1e-8),
    "schedule": ScheduleSpec("linear", 2, STEPS),
}

# No dropout, to compare to the bit.
calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "vocab_size": 100}
sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=64, **calm))
cut = Cut(1, 3)
freeze(model, cut=cut, mode="full", train_bottom=True)
whole = copy.deepcopy(model)
blueprint, (local, trunk) = trunk_model(model), split(model, cut=cut)
weights = {group: trunk_state(trunk, group=group) for group in GROUPS}
words = torch.randint(5, 100, (STEPS * MICRO_BATCHES * 4, 9))
data = [{"input_ids": ids, "labels": ids[0] % 2} for ids in words]


def trained(model: torch.nn.Module) -> tuple[list[float], float]:
    """What anybody writes who fine-tunes with transformers; nothing here is of splitlearn but AdamW."""
    arguments = TrainingArguments(
        output_dir=str(ROOM / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=MICRO_BATCHES,
        logging_steps=1,
        max_grad_norm=0.0,  # a norm over all parties is not to be had here
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    adamw = build_stepper(model.parameters(), **SPECS)
    more = {"train_dataset": data, "eval_dataset": data}
    trainer = Trainer(model, arguments, optimizers=(adamw.optimiser, adamw.scheduler), **more)
    trainer.train()
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return history, trainer.evaluate()["eval_loss"]


def open_gate(log: Log, offer: Offer, session: Session) -> Gate:
    me, peer = (CLINIC, GPUHOST) if session.me is Role.TRUSTED else (GPUHOST, CLINIC)
    rules = policy.load(POLICIES / ("demo.toml" if me is CLINIC else "compute.toml"))
    more = {"binding": "0" * 64, "software": "example"}
    return Gate.open(rules, log=log, session=session, me=me, peer=peer, offer=offer, **more)


def open_log(name: PartyName) -> Log:
    more = {"signer": Ed25519PrivateKey.generate(), "clock": time.time}
    return Log.open(ROOM / name.party / "audit", origin=name.dns, **more)


exact = CodecSpec(*["identity"] * 4)
same = {"run": "own-loop", "conversation": "0" * 32, "job": "0" * 64, "salt": "1" * 64}
mode = {"purpose": "train", "mode": "full", "returns_input_gradient": True, "seed": 0, "held": ()}
sums = {group: digest(weights[group]) for group in GROUPS} | {"bases": digest({})}
offer = Offer(model=blueprint, cut=spec_of(cut), codecs=exact, **same, **mode, **sums, **SPECS)
run = TrustedRun(offer, local, weights, 32, 32, packed=True, every=STEPS, deadline_s=20.0)

with open_log(CLINIC) as clinic_log, open_log(GPUHOST) as gpuhost_log:
    to_gpuhost, to_clinic = pair(names=("clinic", "gpuhost"))
    gpuhost = ComputeEngine(
        to_clinic,
        open_gate=lambda told, session: open_gate(gpuhost_log, told, session),
        place_of=lambda _: RunPlace(ROOM / "gpuhost/checkpoints", ROOM / "gpuhost/weights"),
        deadline_s=20.0,
        observe=lambda _: None,
    )
    thread = threading.Thread(target=gpuhost.serve)
    thread.start()
    peer = Peer(to_gpuhost, lambda told, session: open_gate(clinic_log, told, session))
    remote = RemoteTrunk(run, peer, folder=ROOM, micro_batches=MICRO_BATCHES)
    remote.open()
    losses, score = trained(local)
    remote.close()
    remote.end()
    thread.join()

expected, wanted = trained(whole)
print("losses, split:", losses, "whole:", expected, sep="\n  ")
print(f"evaluation: split {score:.6f}, whole {wanted:.6f}")
assert (losses, score) == (expected, wanted)
print("losses             equal to the bit")

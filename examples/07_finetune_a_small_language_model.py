"""A small Llama fine-tuned by two parties in one process, and by one alone: the same perplexity.

The clinic has the text, the embeddings with the head that is tied to them, the first and the last
layer, and the loss; gpuhost has the two layers between. Masks and rotary tables are made at gpuhost from
lengths. Without a lossy codec the split run is the unsplit one to the bit; with the codecs that a job
has by default it is as good. `splitlearn trusted train` does all of this from a job.toml.

    python examples/07_finetune_a_small_language_model.py

What you should see: three perplexities, the second equal to the first, the third within a hundredth.
"""

import copy
import random
import tempfile
import threading
import time
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from transformers import LlamaConfig, LlamaForCausalLM

import parties
from splitlearn import policy
from splitlearn.audit import Log
from splitlearn.channel import pair
from splitlearn.engine.compute.engine import ComputeEngine, RunPlace
from splitlearn.engine.plain import evaluate_plain, train_plain
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
    Cut,
    digest,
    freeze,
    own_memory,
    spec_of,
    split,
    trunk_model,
    trunk_state,
)
from splitlearn.tasks import IGNORED, Batch, Example, batch
from splitlearn.tasks.metrics import perplexity
from splitlearn.wire.messages import CodecSpec, Offer, OptimiserSpec, ScheduleSpec

torch.manual_seed(0)
torch.set_num_threads(1)
ROOM = Path(tempfile.mkdtemp(prefix="splitlearn-example-"))
RULES = {Role.TRUSTED: "research.toml", Role.COMPUTE: "compute.toml"}
NAMES = {Role.TRUSTED: "clinic", Role.COMPUTE: "gpuhost"}
PARTIES = {r: PartyName(federation="example.org", party=n, role=r) for r, n in NAMES.items()}
CUT, STEPS = Cut(1, 3), 16
ADAMW = OptimiserSpec("adamw", 5e-3, 0.0, 0.9, 0.999, 1e-8)
SCHEDULE = ScheduleSpec("constant", 0, STEPS)


def texts(count: int, *, seed: int) -> Batch:
    """Texts in which each token says the next but for a die: 7 times itself and up to 2, of 50."""
    draw, examples = random.Random(seed), []  # noqa: S311 - no secret
    for _ in range(count):
        ids = [draw.randrange(1, 50)]
        while len(ids) < draw.randrange(6, 12):
            ids.append((7 * ids[-1] + draw.randrange(3)) % 50)
        targets = {"labels": (IGNORED, *ids[1:])}
        examples.append(Example(tuple(ids), None, targets, len(ids) - 1, row=0, next_token=True))
    return batch(examples, pad_id=0)


def steps(step: int) -> list[Batch]:
    """Two micro-batches, under way at the same time."""
    return [texts(12, seed=2 * step), texts(12, seed=2 * step + 1)]


def take(name: str, losses: list[dict[str, torch.Tensor]]) -> float:
    found = perplexity(sum(float(each["losses"].sum()) for each in losses), HELD_OUT.items)
    print(f"{name:<28} perplexity {found:.4f}")
    return found


def split_run(whole: LlamaForCausalLM, *, codec: str, other: str) -> list[dict[str, torch.Tensor]]:
    """Train in two parties; what the split model says of the texts held out."""
    blueprint = trunk_model(whole)
    freeze(whole, cut=CUT, mode="full", train_bottom=True)
    local, trunk = split(whole, cut=CUT)
    weights = {group: trunk_state(trunk, group=group) for group in GROUPS}
    offer = Offer(
        *("language", "0" * 32, "0" * 64, "1" * 64, "train", "full", True, blueprint, spec_of(CUT)),
        *(CodecSpec(codec, other, other, other), ADAMW, SCHEDULE, 0),
        *(digest(weights["layers"]), digest(weights["bottlenecks"]), digest({}), ()),
    )
    run = TrustedRun(offer, local, weights, 32, 32, packed=True, every=STEPS, deadline_s=20.0)
    place = RunPlace(ROOM / codec / "checkpoints", ROOM / codec / "weights")
    logs = {
        role: Log.open(
            *(ROOM / codec / name.party / "audit",),
            origin=name.dns,
            signer=Ed25519PrivateKey.generate(),
            clock=time.time,
        )
        for role, name in PARTIES.items()
    }

    def gate(told: Offer, session: Session) -> Gate:
        rules = policy.load(Path(str(parties.__file__)).parent / "policies" / RULES[session.me])
        ends = {"me": PARTIES[session.me], "peer": PARTIES[session.peer], "log": logs[session.me]}
        more = {"binding": "0" * 64, "software": "example", "offer": told, "session": session}
        return Gate.open(rules, **ends, **more)

    ours, theirs = pair(names=("clinic", "gpuhost"))
    waits = {"deadline_s": 20.0, "observe": lambda _: None}
    gpuhost = ComputeEngine(ours, open_gate=gate, place_of=lambda _: place, **waits)
    thread = threading.Thread(target=gpuhost.serve)
    thread.start()
    checkpoints = Checkpoints(ROOM / codec / "clinic/checkpoints")
    clinic = TrustedEngine(
        run, peers=[Peer(theirs, gate)], checkpoints=checkpoints, observe=lambda _: None
    )
    clinic.train(steps)
    said = clinic.evaluate([HELD_OUT])
    clinic.finish()
    clinic.end(None)
    thread.join()
    return said


HELD_OUT = texts(60, seed=10_000)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 50}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))
own_memory(model)
take("before", evaluate_plain(model, batches=[HELD_OUT], observe=lambda _: None))
alone = copy.deepcopy(model)
how = {"steps": steps, "optimiser": ADAMW, "schedule": SCHEDULE, "seed": 0}
train_plain(alone, **how, observe=lambda _: None)
unsplit = take("unsplit", evaluate_plain(alone, batches=[HELD_OUT], observe=lambda _: None))
exact = take("split, identity", split_run(copy.deepcopy(model), codec="identity", other="identity"))
coded = take("split, int8+zstd and fp16", split_run(model, codec="int8+zstd", other="fp16"))
assert exact == unsplit
assert abs(coded / unsplit - 1) < 0.01

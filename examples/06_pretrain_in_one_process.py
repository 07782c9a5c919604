"""Two organisations, a language each, pre-train one model: all of it in one process.

Each makes up sentences of a language that only it speaks. They agree on a vocabulary by counting words,
each its own; a hub calls two rounds; each streams corrupted ids, and the hub learns to tell which
tokens were replaced. Flower's grid is threads here, everything else is what a real run has:
certificates, TLS, policies, a log at both ends of each stream.

    python examples/06_pretrain_in_one_process.py

As commands: splitlearn coordinator up, generator run, pretrain; `make demo-pretrain` does those.
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

from parties import generator
from parties.discriminating import conduct
from splitlearn import audit
from splitlearn.coordination.local_grid import LocalGrid
from splitlearn.coordination.summon import GridSummon
from splitlearn.identity import Registrar, create_federation, invite, join
from splitlearn.pretrain.counts import count, merge
from splitlearn.pretrain.vocabulary import train_vocabulary
from splitlearn.roles import Role

ROOM = Path(tempfile.mkdtemp(prefix="splitlearn-example-"))
POLICIES = Path(__file__).parent.parent / "parties" / "policies"
LANGUAGES = {"anna": "alvian", "bert": "borish"}


def sentences(seed: int) -> list[str]:
    """Each word says which two may follow, so there is something to learn."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    words = [
        "".join(draw.sample("bdgklmnprst", 1) + draw.sample("aeiou", 1)) * 2 for _ in range(40)
    ]
    following = {word: draw.sample(words, 2) for word in words}
    found = []
    for _ in range(400):
        line = [draw.choice(words)]
        while len(line) < 6:
            line.append(draw.choice(following[line[-1]]))
        found.append(" ".join(line))
    return found


# 1. Text and counts. A word that a party has only once is never counted, so it stays at home.
counts = []
for number, party in enumerate(LANGUAGES):
    (ROOM / party).mkdir()
    (ROOM / party / "text.txt").write_text("\n".join(sentences(number)) + "\n")
    counts.append(count(sentences(number), minimum=3))
train_vocabulary(merge(counts), size=150, kind="bpe").save(ROOM / "tokenizer.json")

# 2. A federation; everybody joins with a token of its own.
create_federation(ROOM / "federation", name="tongues.example")
with Registrar(ROOM / "federation", port=0) as registrar:
    for party in ("hub", *LANGUAGES):
        role = Role.DISCRIMINATOR if party == "hub" else Role.GENERATOR
        token = invite(ROOM / "federation", party=party, role=role)
        join(token, address=registrar.address, folder=ROOM / party / "identity")
        shutil.copyfile(POLICIES / f"{role.value}.toml", ROOM / party / "policy.toml")

# 3. Settings, as README explains them: one job, and one file for each generator.
MODEL = "[model]\nlayers = 1\nwidth = {0}\nheads = 2\ninner = {1}\nembedding = 16\npositions = 16\n"
COMMON = '[vocabulary]\nfile = "tokenizer.json"\n[optimiser]\nlearning_rate = 3e-3\n'
OWN = '[identity]\nfolder = "{0}/identity"\n[policy]\nfile = "{0}/policy.toml"\n'
(ROOM / "pretrain.toml").write_text(
    '[run]\nname = "tongues"\nfolder = "hub/run"\nthreads = 1\n'
    '[coordinator]\naddress = "127.0.0.1:1"\n[listen]\naddress = "127.0.0.1:0"\n'
    "[batch]\nexamples = 16\nwidth = 16\n"
    "[rounds]\ncount = 2\nsteps = 30\nleast = 2\ngather_s = 0\nheld_out = 2\n"
    + MODEL.format(32, 64) + COMMON + OWN.format("hub")
)  # fmt: skip
for party, language in LANGUAGES.items():
    (ROOM / f"{party}.toml").write_text(
        f'[run]\nfolder = "{party}/run"\nthreads = 1\n'
        '[coordinator]\naddress = "127.0.0.1:1"\nparty = "hub"\n'
        f'[data]\nlanguage = "{language}"\ntext = "{party}/text.txt"\n'
        + MODEL.format(16, 32) + COMMON + OWN.format(party)
    )  # fmt: skip

# 4. The run. A notebook would stop here and look at hub/run.
with LocalGrid(generator.app) as grid:
    for party in LANGUAGES:
        grid.join(party, settings=ROOM / f"{party}.toml")
    conduct(ROOM / "pretrain.toml", GridSummon(grid))

# 5. What came of it, and whether both ends of each stream tell the same of it.
metrics = json.loads((ROOM / "hub/run/metrics.json").read_text())
for number, found in enumerate(metrics["rounds"], 1):
    told = ", ".join(
        f"{name} {score['auc']:.2f}" for name, score in sorted(found["scores"].items())
    )
    print(f"round {number}: replaced tokens told with an area of {told}")
print(f"{metrics['steps']} steps, {metrics['bytes_per_token']:.1f} bytes a token on the wire")
for party in LANGUAGES:
    both = audit.reconcile(ROOM / f"hub/run/audit-{party}", ROOM / f"{party}/run/tongues/audit")
    print(f"logs of hub and {party}: exit {int(both.exit)}, {both.matched} messages in both")
print(f"the model lies in {ROOM / 'hub/run/model'}")

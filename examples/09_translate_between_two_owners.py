"""Two owners of the same sentences, a language each, train one translation model: all in one process.

One has sentences of a made-up language, the other the same sentences with other words in another order.
Neither shows its side: keyed hashes tell which sentences both have, an encoder's rows cross one way. The
encoder stands still here, so each row crosses once; then the link falls silent and training goes on.
Models are tiny and drawn; TLS, policies and logs are those of a real run.

    python examples/09_translate_between_two_owners.py

As commands: splitlearn encoder serve, splitlearn decoder train; `make demo-translate` does those.
"""

import json
import random
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing
from transformers import BertConfig, PreTrainedTokenizerFast

from parties import decoder, encoder
from splitlearn import audit
from splitlearn.identity import Registrar, create_federation, invite, join
from splitlearn.roles import Role
from splitlearn.translation.frozen import build_bert

ROOM = Path(tempfile.mkdtemp(prefix="splitlearn-example-"))
POLICIES = Path(__file__).parent.parent / "parties" / "policies"
PARTIES = {"source": Role.ENCODER, "target": Role.DECODER}

# 1. Sentences with an id each, and a model. The last sentence of one side is not in the other.
draw = random.Random(1)  # noqa: S311 - no secret
numbered = {f"k{i}": [draw.randrange(20) for _ in range(draw.randrange(3, 7))] for i in range(240)}
for party, prefix, skipped in (("source", "a", "k0"), ("target", "b", "k1")):
    (ROOM / party).mkdir()
    for file, chosen in (("train", range(200)), ("held", range(200, 240))):
        lines = ["key\ttext"]
        for i in chosen:
            words = numbered[f"k{i}"] if party == "source" else numbered[f"k{i}"][::-1]
            if f"k{i}" != skipped:
                lines.append(f"k{i}\t{' '.join(f'{prefix}{word}' for word in words)}")
        (ROOM / party / f"{file}.tsv").write_text("\n".join(lines) + "\n")
words = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(f"{p}{i}" for p in "ab" for i in range(20)),
)
inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
inner.pre_tokenizer = Whitespace()
inner.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(ROOM / "model")
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
config = BertConfig(
    vocab_size=len(words), intermediate_size=64, max_position_embeddings=16, **sizes
)
build_bert(config, seed=1).save_pretrained(ROOM / "model")

# 2. A federation; both join with a token of their own.
create_federation(ROOM / "federation", name="tongues.example")
with Registrar(ROOM / "federation", port=0) as registrar:
    for party, role in PARTIES.items():
        token = invite(ROOM / "federation", party=party, role=role)
        join(token, address=registrar.address, folder=ROOM / party / "identity")
        shutil.copyfile(POLICIES / f"{role.value}.toml", ROOM / party / "policy.toml")

# 3. Settings, as README explains them.
with socket.create_server(("127.0.0.1", 0)) as probe:
    address = f"127.0.0.1:{probe.getsockname()[1]}"
COMMON = """
[identity]
folder = "{0}/identity"
[model]
path = "model"
[data]
train = "{0}/train.tsv"
evaluate = "{0}/held.tsv"
id = "key"
max_length = 12
[policy]
file = "{0}/policy.toml"
"""
(ROOM / "encoder.toml").write_text(
    f'[run]\nfolder = "source/run"\n[peer]\nparty = "target"\nlisten = "{address}"\n'
    + COMMON.format("source")
)
(ROOM / "decoder.toml").write_text(
    f'[run]\nname = "a-b"\nfolder = "target/run"\n[peer]\nparty = "source"\ndial = "{address}"\n'
    "[adapters]\ninner = 64\nreach = 8\nencoder_trains = false\n"
    '[codec]\nactivation = "int8"\n[optimiser]\nlearning_rate = 3e-3\nwarmup_steps = 20\n'
    "[schedule]\nsteps = 60\nbatch_size = 20\n[decoding]\niterations = 4\ncandidates = 1\n"
    + COMMON.format("target")
)

# 4. The run: the encoder party in a thread, the decoder party here.
serving = threading.Thread(
    target=encoder.serve, args=(ROOM / "encoder.toml",), kwargs={"runs": 1, "threads": 1}
)
serving.start()
decoder.train(ROOM / "decoder.toml", threads=1)
serving.join()

# 5. What came of it, and whether both logs tell the same of it.
metrics = json.loads((ROOM / "target/run/metrics.json").read_text())
print(f"samples in common: {metrics['samples']['train']} and {metrics['samples']['evaluate']}")
print(f"loss {metrics['losses'][0]:.2f} at first, {metrics['losses'][-1]:.2f} at last")
print(f"rows received: {metrics['rows']}, gradients sent: {metrics['sent'].get('gradient', 0)}")
both = audit.reconcile(ROOM / "target/run/audit", ROOM / "source/run/target-a-b/audit")
print(f"logs of source and target: exit {int(both.exit)}, {both.matched} messages in both")

"""Writes notes.json: signed heads as the aics-tlog package writes them, checked by it before.

    python tests/vectors/make_notes.py > tests/vectors/notes.json

Needs aics-tlog (0.2.1 made the file that is committed), an implementation of C2SP signed notes and
checkpoints that shares no code with ours. The tests read only the file: Ed25519 has one signature for
one key and text, so a head of ours is right when it is theirs to the byte.
"""

import hashlib
import json
import sys
from importlib.metadata import version

from aics_tlog.checkpoint import Checkpoint, serialise_checkpoint
from aics_tlog.note import (
    Note,
    format_vkey,
    parse_note,
    sign_note,
    verify_note,
    vkey_from_ed25519,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOG, PEER = "trusted.clinic.example.org", "compute.farm.example.org"
SEEDS = {LOG: bytes(range(32)), PEER: bytes(range(1, 33))}
SIZES = (0, 1, 7, 256, 1_000_000, 2**53)


def main() -> None:
    keys = {name: Ed25519PrivateKey.from_private_bytes(seed) for name, seed in SEEDS.items()}
    words = {name: vkey_from_ed25519(name, key.public_key()) for name, key in keys.items()}
    heads = []
    for size in SIZES:
        root = hashlib.sha256(b"%d" % size).digest()
        text = serialise_checkpoint(Checkpoint(origin=LOG, size=size, root=root))
        lines = tuple(sign_note(text, keys[name], name) for name in (LOG, PEER))
        alone, both = (Note(text=text, signatures=lines[:n]).serialise() for n in (1, 2))
        assert verify_note(parse_note(alone), [words[LOG]])
        assert verify_note(parse_note(both), [words[LOG]])
        assert verify_note(parse_note(both), [words[PEER]])
        heads.append({"size": size, "root": root.hex(), "note": alone, "countersigned": both})
    document = {
        "made_by": f"aics-tlog {version('aics-tlog')}",
        "seeds": {name: seed.hex() for name, seed in SEEDS.items()},
        "keys": {name: format_vkey(word) for name, word in words.items()},
        "log": LOG,
        "peer": PEER,
        "heads": heads,
    }
    json.dump(document, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

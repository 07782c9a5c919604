"""Where weights lie in memory. A matrix product's last bits depend on it.

The CPU kernels take another path, which sums in another order, when what they read does not begin
on a round address. torch allocates on round addresses; a tensor mapped from a file lies wherever the
file's header ended. So a model just loaded and the same model sent to a peer would give logits that
differ in the last bit, unless every weight is first moved to memory of its own. No value changes.
"""

import json
from pathlib import Path

import torch
from torch import nn

__all__ = ["LINE_BYTES", "align_file", "own_memory"]

# A cache line, and what torch's CPU allocator aligns to.
LINE_BYTES = 64


def own_memory(module: nn.Module) -> None:
    """Moves every weight into memory of its own, aligned as torch allocates it. No value changes."""
    for parameter in module.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def align_file(file: Path) -> None:
    """Rewrites a safetensors file so that its tensors begin on cache lines, but for odd-sized ones.

    transformers maps the file and computes from there. Spaces may pad the header; tensors whose size
    is not whole lines come last, so that they displace no other.
    """
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    spans = {
        name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"
    }
    order = sorted(
        spans,
        key=lambda name: ((spans[name][1] - spans[name][0]) % LINE_BYTES != 0, spans[name][0]),
    )
    offset = 0
    for name in order:
        size = spans[name][1] - spans[name][0]
        header[name]["data_offsets"] = [offset, offset + size]
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % LINE_BYTES)
    body = (raw[start + spans[name][0] : start + spans[name][1]] for name in order)
    file.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *body]))

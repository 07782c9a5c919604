"""The bounds of everything that comes from a peer, each with its unit and where the number comes from.

Checked before anything is kept, so a claim in a header never allocates memory. Part of the protocol:
both sides refuse the same things, and a change here is a change of `PROTOCOL`.
"""

__all__ = [
    "CHUNK_BYTES",
    "MAX_DIM",
    "MAX_FRAME_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_META_BYTES",
    "MAX_NAME_CHARACTERS",
    "MAX_NDIM",
    "MAX_SEQUENCE",
    "MAX_TENSORS",
    "PROTOCOL",
]

# Version of frames, metadata and handshake together. It grows with any change of a byte's meaning;
# two versions don't speak with one another.
PROTOCOL = 1

# 64 MiB: twice a micro-batch of 32 texts x 512 tokens x width 1,024 in 16 bits; four times the largest
# weight of a 24-layer encoder. More is a mistake or an attack.
MAX_FRAME_BYTES = 64 * 2**20

# 64 KiB: the largest metadata we write, twice 4,096 lengths of up to 5 bytes each, takes 40 KiB.
MAX_META_BYTES = 64 * 2**10

# 64 KiB: 512 tensors with names of about 50 characters; a 24-layer trunk has 384 tensors.
MAX_HEADER_BYTES = 64 * 2**10
MAX_TENSORS = 512

# characters: the longest parameter name in transformers' encoders has 80.
MAX_NAME_CHARACTERS = 128

# dimensions: weights have 2, activations 3, attention scores, if anybody ever sends them, 4.
MAX_NDIM = 4

# elements along one dimension: no tensor that fits a frame can have more.
MAX_DIM = MAX_FRAME_BYTES

# messages in one direction of a session: integers up to here are exact in every language.
MAX_SEQUENCE = 2**53

# 256 KiB: what one gRPC message holds. Peak memory at 16 MiB was 75 MB with it, 230 MB without,
# and gRPC's own 4 MiB limit needs no raising.
CHUNK_BYTES = 256 * 2**10

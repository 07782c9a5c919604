"""The limits fit one another and the jobs they were chosen for."""

from pathlib import Path

from splitlearn.roles import Kind
from splitlearn.wire import Part, StepTensor, frames, limits, tensors


def test_a_step_of_the_largest_batch_and_length_fits_the_metadata() -> None:
    meta = StepTensor(
        step=10_000_000,
        micro_batch=4_095,
        micro_batches=4_096,
        phase="evaluate",
        width=131_072,
        packed=True,
        lengths=(131_072,) * 4_096,
        reply_to=limits.MAX_SEQUENCE,
    )
    raw = frames.encode(Kind.ACTIVATION, seq=limits.MAX_SEQUENCE, meta=meta)
    assert len(raw) - frames.HEADER_BYTES < limits.MAX_META_BYTES // 3
    assert frames.decode(raw).meta == meta


def test_all_weights_of_a_large_trunk_fit_one_header() -> None:
    # 24 layers x 16 parameters, names as long as the longest in transformers' encoders.
    parts = [Part(f"{index:080d}", "F32", (1_024,), bytes(4_096)) for index in range(384)]
    assert tensors.decode(tensors.encode(parts)) == tuple(parts)


def test_a_micro_batch_of_32_full_texts_in_16_bits_takes_half_a_frame() -> None:
    assert limits.MAX_FRAME_BYTES == 2 * (32 * 512 * 1_024 * 2)


def test_header_and_metadata_are_always_in_the_first_chunk() -> None:
    assert frames.HEADER_BYTES + limits.MAX_META_BYTES < limits.CHUNK_BYTES < limits.MAX_FRAME_BYTES


def test_a_chunk_is_far_below_grpcs_own_message_limit() -> None:
    assert limits.CHUNK_BYTES * 8 < 4 * 2**20


def test_the_document_names_the_same_limits() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    for sentence in (
        f"Protocol version: {limits.PROTOCOL}.",
        f"chunks of exactly {limits.CHUNK_BYTES:,} bytes",
        f"bytes of metadata, at most {limits.MAX_META_BYTES // 2**10} KiB",
        f"The whole frame has at most {limits.MAX_FRAME_BYTES // 2**20} MiB",
        f"at most {limits.MAX_NDIM} dimensions, each at most {limits.MAX_DIM:,};",
        f"to a multiple of 8 and has at most {limits.MAX_HEADER_BYTES // 2**10} KiB",
        f"At most {limits.MAX_TENSORS} tensors; each name once, 1 to {limits.MAX_NAME_CHARACTERS} ",
        f"from 1, at most 2^{limits.MAX_SEQUENCE.bit_length() - 1};",
    ):
        assert sentence in text

"""The limits fit one another and the jobs they were chosen for."""

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

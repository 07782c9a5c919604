"""What stands on the wire: limits, typed metadata, frames and tensor containers. Bytes in, values out.

`frames.encode`, `frames.decode`, `tensors.encode`, `tensors.decode` read as what they are, so those
modules are part of the face. Never opens a connection, imports neither torch nor, until an array is
asked for, numpy.
"""

from splitlearn.wire import frames, limits, messages, tensors
from splitlearn.wire.frames import Assembler, Frame
from splitlearn.wire.messages import (
    META,
    Accept,
    Ask,
    BottleneckSpec,
    CodecSpec,
    Countersigned,
    CutSpec,
    Empty,
    Enlist,
    Finish,
    Ids,
    Meta,
    Offer,
    OptimiserSpec,
    Pairing,
    Report,
    Resume,
    Round,
    Samples,
    ScheduleSpec,
    Settled,
    Settlement,
    Shard,
    Step,
    StepTensor,
    TrunkModel,
    Want,
)
from splitlearn.wire.tensors import Part

__all__ = [
    "META",
    "Accept",
    "Ask",
    "Assembler",
    "BottleneckSpec",
    "CodecSpec",
    "Countersigned",
    "CutSpec",
    "Empty",
    "Enlist",
    "Finish",
    "Frame",
    "Ids",
    "Meta",
    "Offer",
    "OptimiserSpec",
    "Pairing",
    "Part",
    "Report",
    "Resume",
    "Round",
    "Samples",
    "ScheduleSpec",
    "Settled",
    "Settlement",
    "Shard",
    "Step",
    "StepTensor",
    "TrunkModel",
    "Want",
    "frames",
    "limits",
    "messages",
    "tensors",
]

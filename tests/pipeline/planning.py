"""Speeds, links and settings for tests of the planner."""

from splitlearn.pipeline.costs import Link, Setting
from splitlearn.pipeline.speeds import PartySpeeds, Speeds

PARTY = PartySpeeds(
    layer=(1e-3, 1e-5),
    layer_backward=(2e-3, 2e-5),
    ends=(1e-3, 1e-6),
    ends_backward=(5e-4, 1e-6),
    layer_update_s=1e-3,
    message=(1e-3, 1e-9),
)
SPEEDS = Speeds(
    tokens=40.0,
    padded=50.0,
    layers=6,
    width=100,
    trusted=PARTY,
    codecs={
        "identity": (1.0, 0.0, 10_000.0, 10_000.0),
        "fp16": (2.0, 0.0002, 5_000.0, 5_000.0),
        "int8": (4.0, 0.01, 1_000.0, 1_000.0),
    },
)
PLAIN = ("identity",) * 4
GIVEN = Setting(
    batch=32,
    first=2,
    last=5,
    micro_batches=4,
    in_flight=8,
    order="1f1b",
    codecs=PLAIN,
    gradients=True,
    returns=True,
)
LINK = Link.of(mbit=100, rtt_ms=20)

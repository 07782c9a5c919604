"""The files a user writes: read strictly, told apart in one sentence when wrong, digested canonically.

Never opens a model or a data file but to see that it is there and, on request, to hash it.
"""

from splitlearn.manifest.chains import links, needs_basis, remembers
from splitlearn.manifest.compute import Compute, load_compute
from splitlearn.manifest.fields import TEXT_FORMATS, Address, Source
from splitlearn.manifest.generator import Generator, load_generator
from splitlearn.manifest.job import Job, load_job
from splitlearn.manifest.pairs import Decoder, Encoder, load_decoder, load_encoder
from splitlearn.manifest.pretrain import Pretrain, load_pretrain
from splitlearn.manifest.summons import Summons, parse_summons

__all__ = [
    "TEXT_FORMATS",
    "Address",
    "Compute",
    "Decoder",
    "Encoder",
    "Generator",
    "Job",
    "Pretrain",
    "Source",
    "Summons",
    "links",
    "load_compute",
    "load_decoder",
    "load_encoder",
    "load_generator",
    "load_job",
    "load_pretrain",
    "needs_basis",
    "parse_summons",
    "remembers",
]

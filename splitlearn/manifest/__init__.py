"""The files a user writes: read strictly, told apart in one sentence when wrong, digested canonically.

Never opens a model or a data file but to see that it is there and, on request, to hash it.
"""

from splitlearn.manifest.chains import links, needs_basis, remembers
from splitlearn.manifest.compute import Compute, load_compute
from splitlearn.manifest.fields import Address, Source
from splitlearn.manifest.job import Job, load_job

__all__ = [
    "Address",
    "Compute",
    "Job",
    "Source",
    "links",
    "load_compute",
    "load_job",
    "needs_basis",
    "remembers",
]

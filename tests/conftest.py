"""What holds for every test: no hub, one thread, hypothesis without a clock."""

import os
import signal
import tempfile

from hypothesis import settings

# Set before any test imports the libraries that read these. What `datasets` caches goes with the
# tests; no test may ask a hub for anything; two parties on two cores must not spin on each other.
_cache = tempfile.TemporaryDirectory(prefix="splitlearn-tests-")
os.environ["HF_HOME"] = _cache.name
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

# A shell that starts us in the background lets its children ignore Ctrl-C; the tests that send one
# need processes that do not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is no failure, and the same commit finds the same examples.
settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("house")


def pytest_unconfigure() -> None:
    _cache.cleanup()

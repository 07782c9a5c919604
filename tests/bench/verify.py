"""A million messages: seconds to log them and seconds to verify the log, on one core.

Appends payload records as a gate does, signed heads and their fsync included, then verifies the log as
`splitlearn audit verify` does, each verdict derived again from the policy. Limits: 60 microseconds a
record to append, 60 seconds to verify, by the clock of a machine that does nothing else; what they
take of the CPU stands beside. Writes out/bench/verify.json and prints the same. Run as
`python -m tests.bench.verify [RECORDS]`.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from parties.auditor import judge_of
from splitlearn.audit import Exit, Log, verify
from splitlearn.audit.records import RunOpen
from splitlearn.policy import load
from tests.audit.test_records import OPEN, PAYLOAD
from tests.door import SIGNER

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "verify.json"
RECORDS = 1_000_000
APPEND_LIMIT_US = 60.0
VERIFY_LIMIT_S = 60.0
POLICY = """
name = "bench"

[[rules]]
id = "activation"
direction = "out"
peer = "compute"
kinds = ["activation"]
codecs = ["int8"]
dtypes = ["I8"]
max_rows = 64
max_columns = 64
max_examples = 64
max_length = 64
max_message_bytes = 1_048_576
max_run_bytes = 1_099_511_627_776
"""


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key, append_s, append_cpu_s = write(
            folder / "audit", records=records, policy=folder / "policy.toml"
        )
        log_bytes = sum(path.stat().st_size for path in (folder / "audit" / "log").iterdir())
        began, began_cpu = time.perf_counter(), time.process_time()
        report = verify(folder / "audit", verifier_key=key, judge_of=judge_of)
        verify_s, verify_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    assert report.exit is Exit.CLEAN, report.findings
    assert report.messages_by_kind == {"out activation": records}
    result = {
        "records": records,
        "log_bytes": log_bytes,
        "append_us": append_s / records * 1e6,
        "append_cpu_us": append_cpu_s / records * 1e6,
        "append_limit_us": APPEND_LIMIT_US,
        "verify_s": verify_s,
        "verify_cpu_s": verify_cpu_s,
        "verify_limit_s": VERIFY_LIMIT_S * records / RECORDS,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result, indent=2))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def write(folder: Path, *, records: int, policy: Path) -> tuple[str, float, float]:
    """A log of `records` messages; its key, and seconds that appending took, by clock and by CPU."""
    policy.write_text(POLICY, encoding="utf-8")
    rules = load(policy)
    with Log.open(
        folder, origin="trusted.bench.example.org", signer=SIGNER, clock=time.time
    ) as log:
        opened: RunOpen = msgspec.structs.replace(
            OPEN,
            log_key=log.verifier_key,
            policy=rules.digest,
            policy_text=rules.canonical.decode(),
        )
        log.append(opened)
        sent = msgspec.structs.replace(
            PAYLOAD, codec="int8", rows=28, columns=32, examples=4, longest=9, policy=rules.digest
        )
        took_s = took_cpu_s = 0.0
        # Making the record is the gate's cost, not the log's.
        for first in range(1, records + 1, 10_000):
            last = min(first + 10_000, records + 1)
            batch = [msgspec.structs.replace(sent, message=number) for number in range(first, last)]
            began, began_cpu = time.perf_counter(), time.process_time()
            for record in batch:
                log.append(record)
            took_s += time.perf_counter() - began
            took_cpu_s += time.process_time() - began_cpu
        return log.verifier_key, took_s, took_cpu_s


if __name__ == "__main__":
    main()

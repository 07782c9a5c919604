"""An auditor's walk: from two parties' logs to a verdict that can be shown to others.

A clinic and gpuhost have trained together (the run of example 02). Each kept a log, and they give you a
copy. You trust neither. What you need beside the logs is each party's verifier key, told to you by that
party itself: by telephone, on paper, on its web site. A key that lies beside a log proves little.

    python examples/05_from_two_logs_to_a_verdict.py

The same from a shell: splitlearn audit verify, splitlearn audit reconcile, splitlearn audit report.
"""

import runpy
import shutil
from datetime import UTC, datetime
from pathlib import Path

from parties.auditor import judge_of
from splitlearn.audit import Exit, Reconciliation, Report, reconcile, verify
from splitlearn.report import collect, render

# The run, and what the auditor has of it: two folders and two keys.
run = runpy.run_path(str(Path(__file__).with_name("02_two_parties_in_one_process.py")))
ROOM: Path = run["ROOM"]
CLINIC, GPUHOST = ROOM / "clinic/audit", ROOM / "gpuhost/audit"
CLINIC_KEY, GPUHOST_KEY = run["clinic_log"].verifier_key, run["gpuhost_log"].verifier_key


def alone(log: Path, *, key: str, peer_key: str) -> Report:
    """Is this log whole, signed, and within its own policy?"""
    return verify(log, verifier_key=key, peer_keys=[peer_key], judge_of=judge_of)


def together(clinic: Path) -> Reconciliation:
    """Do both logs tell the same story, message by message?"""
    return reconcile(clinic, GPUHOST, key_a=CLINIC_KEY, key_b=GPUHOST_KEY, judge_of=judge_of)


def copy_of(log: Path, name: str) -> Path:
    """The evidence itself is never touched."""
    return Path(shutil.copytree(log, ROOM / name))


def say(step: str, verdict: Exit, *, of: Report | Reconciliation) -> None:
    """One line, and what was found."""
    print(f"{step}: exit {int(verdict)} ({verdict.name.lower()})")
    found = of.findings if isinstance(of, Report) else of.differences
    for each in found:
        print(f"    {each.name}: {each.sentence}")


# 1. Each log by itself: every line is in the tree whose heads are signed, the policy's verdicts are
#    derived again, and each receipt of the peer is for exactly the messages that the log shows.
for name, log, key, peer_key in (
    ("clinic", CLINIC, CLINIC_KEY, GPUHOST_KEY),
    ("gpuhost", GPUHOST, GPUHOST_KEY, CLINIC_KEY),
):
    report = alone(log, key=key, peer_key=peer_key)
    say(f"1. log of {name} by itself", report.exit, of=report)
    (countersigned,) = report.countersigned.values()
    print(f"    {report.records} records; the peer countersigned the first {countersigned}")
    sent = {kind: n for kind, n in report.messages_by_kind.items() if kind.startswith("out")}
    print("    " + ", ".join(f"{kind} {n}" for kind, n in sent.items()))

# 2. Both together: each message that one says it sent is one that the other says it took in, with the
#    same bytes. Neither log holds content, only commitments to it: you have seen no byte of the data.
whole = together(CLINIC)
say("2. both logs together", whole.exit, of=whole)
print(f"    {whole.matched} messages are in both logs, {len(whole.differences)} are not")

# 3. Would you have noticed? Change one word of one line in a copy, as if no activation had left there.
forged = copy_of(CLINIC, "one-word") / "log/000000.jsonl"
text = forged.read_bytes()
forged.write_bytes(text.replace(b'"kind":"activation"', b'"kind":"checkpoint"', 1))
report = alone(forged.parents[1], key=CLINIC_KEY, peer_key=GPUHOST_KEY)
say("3. one word changed", report.exit, of=report)

# 4. A cleverer way: hand over the log as it was at an earlier signed head, as if nothing had come after.
#    By itself it is a perfect log, and no check of it alone can tell. But gpuhost holds a later head with
#    the clinic's signature, and messages that the shorter log does not have.
earlier = copy_of(CLINIC, "rolled-back")
sizes = sorted(int(path.stem) for path in (earlier / "checkpoints").glob("*.note"))
lines = (earlier / "log/000000.jsonl").read_bytes().splitlines(keepends=True)
(earlier / "log/000000.jsonl").write_bytes(b"".join(lines[: sizes[0]]))
for size in sizes[1:]:
    (earlier / f"checkpoints/{size}.note").unlink()
report = alone(earlier, key=CLINIC_KEY, peer_key=GPUHOST_KEY)
say("4. rolled back, by itself", report.exit, of=report)
caught = together(earlier)
say("4. rolled back, against the peer's", caught.exit, of=caught)

# 5. The verdict on the honest log as one page: no network, no script, for mail, print and the file.
page = render(
    collect(
        CLINIC,
        alone(CLINIC, key=CLINIC_KEY, peer_key=GPUHOST_KEY),
        verifier_key=CLINIC_KEY,
        software="example",
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    )
)
(ROOM / "report.html").write_text(page, encoding="utf-8")
print(f"5. wrote {ROOM / 'report.html'}, {len(page) // 1000} kB")

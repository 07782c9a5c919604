"""The examples run as a newcomer runs them: on their own, without a network, and say what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# What a reader should find in the output of each.
SAYS = {
    "01_split_by_hand.py": ["gradients          equal to the bit"],
    "02_two_parties_in_one_process.py": ["log of clinic: 100 records, clean", "log of gpuhost"],
    "03_load_a_merged_model.py": ["both give the same logits", "transformers alone refuses it"],
    "04_audit_a_log.py": [
        "untouched: exit 0 (clean)",
        "one byte changed: exit 3 (integrity)",
        "put back: exit 0 (clean)",
        "torch was imported: False",
    ],
    "05_from_two_logs_to_a_verdict.py": [
        "1. log of clinic by itself: exit 0 (clean)",
        "1. log of gpuhost by itself: exit 0 (clean)",
        "2. both logs together: exit 0 (clean)",
        "messages are in both logs, 0 are not",
        "3. one word changed: exit 3 (integrity)",
        "4. rolled back, by itself: exit 0 (clean)",
        "4. rolled back, against the peer's: exit 4 (mismatch)",
        "    fork: ",
        "5. wrote ",
    ],
    "06_pretrain_in_one_process.py": [
        "round 2: replaced tokens told with an area of alvian 0.",
        "60 steps, ",
        "logs of hub and anna: exit 0, ",
        "logs of hub and bert: exit 0, ",
    ],
    "07_finetune_a_small_language_model.py": [
        "unsplit                      perplexity ",
        "split, identity              perplexity ",
        "split, int8+zstd and fp16    perplexity ",
    ],
    "08_your_own_loop.py": ["losses             equal to the bit", "evaluation: split 0."],
    "09_translate_between_two_owners.py": [
        "samples in common: 198 and 40",
        "gradients sent: 0",
        "logs of source and target: exit 0, ",
    ],
}


def run(example: Path, *arguments: str, folder: Path) -> str:
    """The example's output. It is run from another folder, and whatever it leaves lies there."""
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(example), *arguments],
        cwd=folder,
        env={**os.environ, **offline, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_shows_what_it_promises(tmp_path: Path, example: Path) -> None:
    output = run(example, folder=tmp_path)
    for sentence in SAYS[example.name]:
        assert sentence in output


def test_examples_are_numbered_from_one_and_all_known_here() -> None:
    assert [path.name for path in EXAMPLES] == sorted(SAYS)
    assert [int(name[:2]) for name in sorted(SAYS)] == list(range(1, len(SAYS) + 1))
    for path in EXAMPLES:
        assert f"python examples/{path.name}" in path.read_text(encoding="utf-8")

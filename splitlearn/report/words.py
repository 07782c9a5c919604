"""How a report puts numbers, times and names from a log into words that a person reads.

Whatever stands in a log was written by somebody who may mean ill: every text from it goes through
`visible` before it is shown. Never escapes HTML; the template and the charts do.
"""

import math
import unicodedata
from datetime import UTC, datetime

__all__ = [
    "KINDS",
    "LIMITS",
    "count",
    "instant",
    "plural",
    "share",
    "short",
    "size",
    "visible",
]

# One line on each kind of message, for a reader who never saw the program.
KINDS = {
    "offer": "the job, as far as the peer has to know it",
    "accept": "what the peer already holds",
    "weights": "weights of the layers that the compute party runs",
    "resume": "the step both sides go on from",
    "ready": "the peer is ready",
    "activation": "hidden states, one row a token, computed from the private text",
    "output": "hidden states that the compute party sends back",
    "gradient": "gradients at the upper cut; labels can be read from them",
    "input_gradient": "gradients at the lower cut, coming back",
    "checkpoint": "a request to save",
    "saved": "the peer has saved",
    "settle": "a signed head of this log or that, its proof and a receipt",
    "settled": "the same from the other side, and a countersignature",
    "countersigned": "the countersignature that was still due",
    "finish": "the end of the run",
    "closed": "the peer's last word",
    "round": "what a generator's batches have to look like",
    "enlist": "the language and vocabulary that a generator has",
    "ask": "how many batches are wanted so far",
    "pairing": "the terms under which an encoder serves a decoder",
    "samples": "keyed hashes of sample ids; whoever has the key can look for an id that it guesses",
    "want": "numbers of the samples whose rows are wanted",
    "norm": "how long the gradient of the compute party's weights is",
    "scale": "what gradients are multiplied by, so that the whole is not too long",
    "bridge": "the terms under which two compute parties of a chain are neighbours",
    "ids": "token ids of one language, some replaced; text to whoever holds the vocabulary",
    "enough": "the round is over",
    "report": "what a generator did in a round, as totals",
}

# True to the design's list of what is not claimed. Fixed: it stands in every report, whatever a log says.
LIMITS = (
    (
        "It shows what this party's software recorded as sent and received. It does not show what other "
        "software on the same machines sent, or what a person who holds the machine's keys did."
    ),
    (
        "Records after the newest countersigned head could still have been rewritten by whoever holds the "
        "log's key. Records under a head that the peer holds could not, without the peer noticing."
    ),
    (
        "A record gives a payload's form, size and keyed digest, never its content. A compute party that "
        "owns the public base model must be assumed able to read the text it computes on, unless accounted "
        "noise is on."
    ),
    (
        "Low rank, depth of the cut and quantisation save bytes. They guarantee nothing. Nothing here says "
        "that activations, gradients, low-rank codes or quantised tensors are anonymous, encrypted, beyond "
        "inversion, or outside data-protection law."
    ),
    (
        "Where gradients leave, labels can be read from them, with high accuracy, by somebody who knows "
        "nothing else."
    ),
    (
        "A leakage figure is a lower bound: what these attacks recovered, a better attacker gets too. Where "
        "leakage was not measured, nothing follows about how low or high it is."
    ),
    (
        "Noise figures hold for the payloads listed with them, for the unit and relation stated, and for no "
        "others."
    ),
    "Lengths, number of examples, order, timing and sizes of messages are visible to the peer.",
    "It does not show that a compute party computed correctly, forgot what it saw, or did not share it.",
    "Times come from the recording party's own clock. Only the order of records is proved.",
)

# Longer names than any certificate or policy of ours gives; the JSON holds them whole.
MAX_CHARACTERS = 160
# Controls, formats (among them those that turn the reading direction), surrogates, private use.
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def visible(text: str, *, limit: int = MAX_CHARACTERS) -> str:
    """`text` on one line, with every character that could hide or turn others written out.

    >>> visible("clinic\\u202egnp")
    'clinic<U+202E>gnp'
    >>> visible("a" * 9, limit=5)
    'aaaaa...'
    """
    cut = text[:limit]
    shown = "".join(
        f"<U+{ord(each):04X}>" if unicodedata.category(each) in _HIDDEN else each for each in cut
    )
    return shown if len(text) <= limit else f"{shown}..."


def count(number: int) -> str:
    """A whole number with a narrow gap between thousands, which wraps nowhere.

    >>> count(1234567).replace(chr(0x202F), "_")
    '1_234_567'
    """
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def plural(number: int, one: str, many: str = "") -> str:
    """Number and noun.

    >>> plural(1, "record"), plural(2, "record"), plural(0, "reply", "replies")
    ('1 record', '2 records', '0 replies')
    """
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def size(number: float) -> str:
    """Bytes with three figures and a decimal unit.

    >>> [size(n).replace(chr(0xA0), " ") for n in (0, 999, 1536, 12_345_678, 5e15)]
    ['0 B', '999 B', '1.54 kB', '12.3 MB', '5000 TB']
    """
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    whole = unit == "B" or abs(value) >= 99.95
    figures = f"{value:.0f}" if whole else f"{value:.{1 if abs(value) >= 9.995 else 2}f}"
    return f"{figures}\N{NO-BREAK SPACE}{unit}"


def share(part: float) -> str:
    """A share of one as per cent.

    >>> [share(part).replace(chr(0xA0), " ") for part in (0.9876, 1.0, 0.0004, 0)]
    ['98.8 %', '100 %', '<0.1 %', '0 %']
    """
    if 0 < part < 0.001:
        return "<0.1\N{NO-BREAK SPACE}%"
    return f"{100 * part:.1f}".removesuffix(".0") + "\N{NO-BREAK SPACE}%"


def instant(seconds: float | None) -> str:
    """Seconds since 1970 as a date and time in UTC; what is no time of ours is said to be none.

    >>> instant(1.7e9), instant(float("inf")), instant(None)
    ('2023-11-14 22:13:20 UTC', 'no time', 'no time')
    """
    if seconds is None or not math.isfinite(seconds) or not 0 <= seconds < 253_402_300_800:
        return "no time"
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"


def short(digest: str) -> str:
    """The first digits of a digest, enough to compare by eye.

    >>> short("0123456789abcdef"), short("abc")
    ('0123456789ab...', 'abc')
    """
    return digest if len(digest) <= 12 else f"{digest[:12]}..."

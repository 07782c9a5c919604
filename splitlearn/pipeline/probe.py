"""What is the link like? From the times of a few probes to round trip and bandwidth each way.

Pure but for the probing, which is handed in: a channel sends zeros beside its frames and says when
each answer came. Answers to a train of large probes come at the pace of the direction that is loaded.
"""

from collections.abc import Callable, Sequence

from splitlearn.pipeline.chain import Pipe
from splitlearn.pipeline.costs import Link

__all__ = ["ZEROS", "Probing", "fit_link", "slowest"]

# Given (bytes there, bytes back) for each probe: seconds from the first sending until each answer.
Probing = Callable[[Sequence[tuple[int, int]]], list[float]]

ZEROS = 16 * 2**10
_ROUND_TRIPS = 7
# Trains grow until one takes so long, or has so many probes; then they are repeated while they get
# faster, for a transport opens its windows only as it goes.
_LONG_S = 0.3
_TRAINS = (8, 32, 128)
_REPEATS = 5
_FASTER = 1.05


def fit_link(probe: Probing) -> Link:
    """The link behind `probe`. A direction too fast to be told from no limit has none."""
    probe([(0, 0)])  # the first one may still wake something up
    round_trip_s = min(probe([(0, 0)])[0] for _ in range(_ROUND_TRIPS))
    rates = [_rate(probe, (ZEROS, 0)), _rate(probe, (0, ZEROS))]
    up, down = (Pipe(rate, round_trip_s / 2) for rate in rates)
    return Link(up, down)


def slowest(links: Sequence[Link]) -> Link:
    """What a chain is planned with: the lowest rate and the longest delay of all ways to its parties."""

    def worst(pipes: Sequence[Pipe]) -> Pipe:
        rates = [pipe.bits_per_s for pipe in pipes if pipe.bits_per_s is not None]
        return Pipe(min(rates, default=None), max(pipe.delay_s for pipe in pipes))

    return Link(worst([link.up for link in links]), worst([link.down for link in links]))


def _rate(probe: Probing, size: tuple[int, int]) -> float | None:
    """Bits a second of the loaded direction."""
    trains = iter(_TRAINS)
    count = next(trains)
    times_s = probe([size] * count)
    while times_s[-1] - times_s[0] < _LONG_S and (more := next(trains, 0)):
        count, times_s = more, probe([size] * more)
    rate = _slope(times_s, size)
    for _ in range(_REPEATS):
        again = _slope(probe([size] * count), size)
        if rate is None or again is None or again < rate * _FASTER:
            return None if rate is None or again is None else max(rate, again)
        rate = again
    return rate


def _slope(times_s: Sequence[float], size: tuple[int, int]) -> float | None:
    """Least squares: bits over the time of their answers."""
    middle = (len(times_s) - 1) / 2
    mean_s = sum(times_s) / len(times_s)
    spread = sum((i - middle) ** 2 for i in range(len(times_s)))
    each_s = sum((i - middle) * (t - mean_s) for i, t in enumerate(times_s)) / spread
    return 8 * max(size) / each_s if each_s > 0 else None

"""Figures of a run under way for Prometheus, from an engine's events, over HTTP on this machine.

Numbers about steps and bytes: no text, label, key, name of a party or of a run. Whoever reaches the port
reads them without proving who they are, so it is on the loopback address unless told otherwise.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from splitlearn.errors import ManifestError

if TYPE_CHECKING:
    from splitlearn.engine.events import Event
    from splitlearn.roles import Kind

__all__ = ["Figures", "MetricsHost", "MetricsPort", "exporting"]

MetricsPort = Annotated[
    int,
    typer.Option(min=0, max=65_535, help="Figures for Prometheus on this port; 0: nowhere."),
]
MetricsHost = Annotated[
    str, typer.Option(help="The address they are on; anybody who reaches it reads them.")
]

# What each figure is, by its name without "splitlearn_".
_GAUGES = {
    "step": "Optimiser steps done.",
    "loss": "Training loss of the newest step.",
    "score": "Newest score of held-out data during training.",
    "gradient_norm": "Norm of the whole gradient before it was clipped, of the newest step.",
    "checkpoint_step": "Optimiser steps in the newest checkpoint.",
}
_COUNTERS = {
    "steps": "Steps that this process did, those done again included.",
    "step_seconds": "Wall seconds of those steps; at a compute party, from one's end to the next's.",
    "conversations": "Conversations begun: one, and one more for each that began anew.",
    "rollbacks": "Times that a peer came back as a new process.",
}


class Counting(Protocol):
    """An engine: bytes of whole frames by kind, so far."""

    @property
    def sent(self) -> "Mapping[Kind, int]": ...

    @property
    def received(self) -> "Mapping[Kind, int]": ...


class Figures:
    """Takes engines' events, one engine after the other, and gives their figures to another thread.

    Bytes are as of the newest event.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._gauges: dict[str, float] = {}
        self._counters: Counter[str] = Counter()
        # By kind and direction: of engines that are done with, and of the present one.
        self._before: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._engine: Counting | None = None
        self._answered_s: float | None = None

    def follow(self, engine: Counting) -> None:
        """Count the bytes of this one from now on, on top of those before."""
        with self._lock:
            self._before, self._engine = Counter(self._bytes), engine

    def __call__(self, event: "Event") -> None:
        """Note one event; call it in the engine's thread."""
        with self._lock:
            self._note(event)
            if self._engine is not None:
                now = Counter(self._before)
                for direction, counts in (
                    ("out", self._engine.sent),
                    ("in", self._engine.received),
                ):
                    now.update({(kind.value, direction): size for kind, size in counts.items()})
                self._bytes = now

    def _note(self, event: "Event") -> None:
        from splitlearn.engine.events import Answered, Began, RolledBack, Saved, StepDone, Watched

        match event:
            case Began(step):
                self._gauges["step"] = step
                self._counters["conversations"] += 1
                self._answered_s = None
            case StepDone(step, loss, seconds):
                self._gauges |= {"step": step + 1, "loss": loss}
                if event.norm is not None:
                    self._gauges["gradient_norm"] = event.norm
                self._stepped(seconds)
            case Answered(step):
                self._gauges["step"] = step + 1
                now_s, before_s = self._clock(), self._answered_s
                self._answered_s = now_s
                if before_s is not None:
                    self._stepped(now_s - before_s)
            case Watched(_, score):
                self._gauges["score"] = score
            case Saved(step):
                self._gauges["checkpoint_step"] = step
            case RolledBack():
                self._counters["rollbacks"] += 1
            case _:
                pass

    def _stepped(self, seconds: float) -> None:
        self._counters["steps"] += 1
        self._counters["step_seconds"] += seconds  # type: ignore[assignment]

    def collect(self) -> Iterator[Any]:
        """The families of figures that there are, as a registry of prometheus-client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            gauges, counters = dict(self._gauges), dict(self._counters)
            moved = sorted(self._bytes.items())
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"splitlearn_{name}", _GAUGES[name], value=value)
        for name, value in counters.items():
            yield CounterMetricFamily(f"splitlearn_{name}", _COUNTERS[name], value=value)
        family = CounterMetricFamily(
            "splitlearn_bytes", "Bytes of whole frames.", labels=("kind", "direction")
        )
        for (kind, direction), size in moved:
            family.add_metric((kind, direction), size)
        yield family


@contextmanager
def exporting(port: int, *, host: str) -> Iterator[Figures]:
    """Figures that can be read at `http://host:port/metrics` meanwhile; port 0: by nobody.

    ManifestError where the extra "prometheus" is not installed, or the place cannot be had.
    """
    figures = Figures()
    if not port:
        yield figures
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ManifestError(
            "--metrics-port needs the extra prometheus; install splitlearn[prometheus], or leave it out"
        ) from None
    registry = CollectorRegistry()
    registry.register(figures)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ManifestError(
            f"--metrics-port {port} cannot be had on {host} ({error.strerror}); name another one"
        ) from None
    try:
        yield figures
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

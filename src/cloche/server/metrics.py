"""Figures of the service as Prometheus reads them (text format 0.0.4), written by hand: four kinds of line.

Labels are operations, states, classes of status and error codes: all of closed lists, so that no client can
make the number of series grow. Must never take a label from a request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def _head(name: str, kind: str, says: str) -> str:
    return f"# HELP {name} {says}\n# TYPE {name} {kind}"


class Histogram:
    """How often a duration fell into each bucket."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def lines(self, name: str, label: str) -> Iterator[str]:
        """Yield the lines of one series."""
        total = 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{label},le="{bound}"}} {total}'
        yield f"{name}_sum{{{label}}} {self.sum_s:.6f}"
        yield f"{name}_count{{{label}}} {total}"


class Metrics:
    """All counters of one process; they begin at nought when it starts."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        self.durations: dict[str, Histogram] = defaultdict(Histogram)
        self.errors: dict[str, int] = defaultdict(int)
        self.creates = 0
        self.commands = 0
        self.streams: dict[str, int] = defaultdict(int)
        self.bytes_in = 0
        self.bytes_out = 0

    def done(self, operation: str, status: int, seconds: float, code: str | None) -> None:
        """Count a request."""
        self.requests[operation, status // 100] += 1
        self.durations[operation].add(seconds)
        if code is not None:
            self.errors[code] += 1

    def text(self, sandboxes: Mapping[str, int], gauges: Mapping[str, float]) -> str:
        """Return all of it; ``sandboxes`` are counts by state, ``gauges`` plain figures by name."""
        return "\n".join([*self._counters(), *self._gauges(sandboxes, gauges), ""])

    def _counters(self) -> Iterator[str]:
        yield _head("cloche_requests_total", "counter", "Requests by operation and class of status.")
        for (operation, status), count in sorted(self.requests.items()):
            yield f'cloche_requests_total{{operation="{operation}",status="{status}xx"}} {count}'
        yield (
            "# HELP cloche_request_seconds How long requests took.\n# TYPE cloche_request_seconds histogram"
        )
        for operation, histogram in sorted(self.durations.items()):
            yield from histogram.lines("cloche_request_seconds", f'operation="{operation}"')
        yield _head("cloche_errors_total", "counter", "Answers that were errors, by code.")
        for code, count in sorted(self.errors.items()):
            yield f'cloche_errors_total{{code="{code}"}} {count}'
        for name, help_, value in (
            ("cloche_creates_total", "Sandboxes that were accepted.", self.creates),
            ("cloche_commands_total", "Commands that were started.", self.commands),
            ("cloche_bytes_in_total", "Bytes of files, trees and input taken in.", self.bytes_in),
            ("cloche_bytes_out_total", "Bytes of files, trees and output given out.", self.bytes_out),
        ):
            yield f"{_head(name, 'counter', help_)}\n{name} {value}"

    def _gauges(self, sandboxes: Mapping[str, int], gauges: Mapping[str, float]) -> Iterator[str]:
        yield _head("cloche_sandboxes", "gauge", "Sandboxes by state.")
        for state, count in sandboxes.items():
            yield f'cloche_sandboxes{{state="{state}"}} {count}'
        yield _head("cloche_open_streams", "gauge", "Streams that are open, by kind.")
        for kind, count in sorted(self.streams.items()):
            yield f'cloche_open_streams{{kind="{kind}"}} {count}'
        for name, value in gauges.items():
            yield f"# TYPE {name} gauge\n{name} {value:g}"

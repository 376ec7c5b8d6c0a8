"""What the ranks said to each other: events, bytes, steps; replay on a modelled network; export for Perfetto."""

from .events import Event, Op
from .network import ETHERNET_100G, HOME_INTERNET, INFINIBAND_NDR, NVLINK4, Link, Network
from .timeline import Span, SpanKind, Timeline, Transfer
from .trace import Message, Trace

__all__ = [
    "ETHERNET_100G",
    "HOME_INTERNET",
    "INFINIBAND_NDR",
    "NVLINK4",
    "Event",
    "Link",
    "Message",
    "Network",
    "Op",
    "Span",
    "SpanKind",
    "Timeline",
    "Trace",
    "Transfer",
]

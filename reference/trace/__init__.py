"""What the ranks said to each other: events, bytes, steps; replay on a modelled network; export for Perfetto."""

from .events import Event, Op
from .network import ETHERNET_100G, HOME_INTERNET, INFINIBAND_NDR, NVLINK4, TCP_ON_ETHERNET, Link, Network, Packets
from .timeline import Span, SpanKind, Timeline, Transfer
from .trace import Message, Trace

__all__ = [
    "ETHERNET_100G",
    "HOME_INTERNET",
    "INFINIBAND_NDR",
    "NVLINK4",
    "TCP_ON_ETHERNET",
    "Event",
    "Link",
    "Message",
    "Network",
    "Op",
    "Packets",
    "Span",
    "SpanKind",
    "Timeline",
    "Trace",
    "Transfer",
]

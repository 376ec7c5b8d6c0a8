"""decentralized.stream_a_fragment: Stream a fragment.

rankwise check decentralized.stream_a_fragment
rankwise hint decentralized.stream_a_fragment

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def stream_a_fragment(
    layers: list[Tensor],
    anchors: list[Tensor],
    fragment: int,
    fragments: int,
    rate: float,
    keep_own: float,
    group: ProcessGroup,
) -> None:
    """Stream a fragment.

    DiLoCo sends a whole model at once and then nothing for H steps, so the link
    must be fast, and idles. Streaming DiLoCo (Douillard et al. 2025) cuts a
    model into P fragments, and sends one of them every H/P steps. Layer i is in
    fragment i mod P. Take the outer step of one fragment: of its layers the
    mean of anchor - layer over islands is the gradient of a step of SGD from
    the anchor. An island keeps a part of what it has learned itself: a layer
    becomes keep_own * layer + (1 - keep_own) * anchor, with the new anchor.

    All other layers and anchors stay as they are, on every rank.

    Args:
        layers: L tensors of this island, of different lengths. Those of the
            fragment are updated in place.
        anchors: L tensors, equal on all ranks. Those of the fragment are
            updated in place.
        fragment: which one, from 0.
        fragments: P. There may be more than layers: then a fragment is empty,
            and nothing is sent.
        rate: of the outer SGD.
        keep_own: 0 takes the anchor.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce of the fragment's elements.
    """
    raise NotImplementedError("not solved yet")

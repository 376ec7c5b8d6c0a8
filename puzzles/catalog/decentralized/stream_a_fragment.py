"""decentralized.stream_a_fragment: an outer step for some of the layers."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.decentralized.answers.streams import stream_a_fragment

from .common import FLOAT


def widths(case):
    """Elements of each layer."""
    return [3 + i for i in range(case.layers)]


def sent(case):
    """Elements of the fragment."""
    return sum(widths(case)[case.fragment :: case.fragments])


def each_layer_by_itself(case, inputs):
    """Layer after layer, in one process."""
    outputs = [{"layers": list(each["layers"]), "anchors": list(each["anchors"])} for each in inputs]
    for i in range(case.fragment, case.layers, case.fragments):
        mean = torch.stack([each["layers"][i] for each in inputs]).mean(0)
        anchor = inputs[0]["anchors"][i]
        anchor = anchor - 0.5 * (anchor - mean)
        for each, output in zip(inputs, outputs, strict=True):
            output["anchors"][i] = anchor
            output["layers"][i] = case.keep * each["layers"][i] + (1 - case.keep) * anchor
    return outputs


PUZZLE = Puzzle(
    name="decentralized.stream_a_fragment",
    title="Stream a fragment",
    statement="""
        DiLoCo sends a whole model at once and then nothing for H steps, so the link must be fast, and idles. Streaming
        DiLoCo (Douillard et al. 2025) cuts a model into P fragments, and sends one of them every H/P steps. Layer i is
        in fragment i mod P. Take the outer step of one fragment: of its layers the mean of anchor - layer over islands
        is the gradient of a step of SGD from the anchor. An island keeps a part of what it has learned itself: a layer
        becomes keep_own * layer + (1 - keep_own) * anchor, with the new anchor.

        All other layers and anchors stay as they are, on every rank.

        Args:
            layers: L tensors of this island, of different lengths. Those of the fragment are updated in place.
            anchors: L tensors, equal on all ranks. Those of the fragment are updated in place.
            fragment: which one, from 0.
            fragments: P. There may be more than layers: then a fragment is empty, and nothing is sent.
            rate: of the outer SGD.
            keep_own: 0 takes the anchor.
            group: n ranks, an island each. Any n.

        Budget: one all-reduce of the fragment's elements.
        """,
    function=stream_a_fragment,
    cases=cases(worlds=(4, 3, 2), layers=(5,), fragment=(1,), fragments=(2,), keep=(0.25,))
    + cases(worlds=(2,), layers=(4,), fragment=(0, 2), fragments=(3,), keep=(0.0,))
    + cases(worlds=(1, 5), layers=(3,), fragment=(0,), fragments=(1,), keep=(0.5,))
    + cases(worlds=(3,), layers=(2,), fragment=(3,), fragments=(4,), keep=(0.5,))
    + cases(worlds=(4,), members=(0, 2, 3), layers=(6,), fragment=(2,), fragments=(4,), keep=(0.75,)),
    drawn=on_any_ranks(layers=range(2, 8), fragment=(0, 1), fragments=(2, 3), keep=(0.0, 0.5)),
    inputs=lambda case, rank: {
        "layers": [case.normal(rank, width, name=f"layer {i}") for i, width in enumerate(widths(case))],
        "anchors": [case.normal(0, width, name=f"anchor {i}") for i, width in enumerate(widths(case))],
        "fragment": case.fragment,
        "fragments": case.fragments,
        "rate": 0.5,
        "keep_own": case.keep,
    },
    oracle=each_layer_by_itself,
    tolerance=1e-9,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: int(sent(case) > 0),
            why="the layers of a fragment fit into one message",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, sent(case), FLOAT),
            why="of the other layers nothing has to be known now: that is what fragments are for",
        ),
    ),
    hints=(
        "Which layers are in fragment 1 of 2, of 5 layers? Count in steps of P.",
        "`range(fragment, len(layers), fragments)`: concatenate anchor - layer of those, sum once, split again.",
        "`change.view_as(anchors[i])`, `anchors[i] -= rate * change`, `layers[i].mul_(keep_own).add_((1 - keep_own) * "
        "anchors[i])`, in this order.",
    ),
    wrong=(
        Wrong(
            "fragments of neighbouring layers",
            diagnosis=r"expected|still holds",
            edits=(
                (
                    "mine = range(fragment, len(layers), fragments)",
                    "size = -(-len(layers) // fragments)\n"
                    "    mine = range(len(layers))[fragment * size : (fragment + 1) * size]",
                ),
            ),
        ),
        Wrong("uphill", diagnosis=r"expected", edits=(("anchors[i] - layers[i]", "layers[i] - anchors[i]"),)),
        Wrong(
            "the weights of the two exchanged",
            diagnosis=r"expected",
            edits=(
                ("mul_(keep_own).add_((1 - keep_own) * anchors[i])", "mul_(1 - keep_own).add_(keep_own * anchors[i])"),
            ),
        ),
        Wrong(
            "mixes with the anchor before the step",
            diagnosis=r"expected",
            body="""
                mine = range(fragment, len(layers), fragments)
                if not mine:
                    return
                gradient = torch.cat([(anchors[i] - layers[i]).flatten() for i in mine])
                dist.all_reduce(gradient, group=group)
                gradient /= dist.get_world_size(group)
                for i, change in zip(mine, gradient.split([layers[i].numel() for i in mine]), strict=True):
                    layers[i].mul_(keep_own).add_((1 - keep_own) * anchors[i])
                    anchors[i] -= rate * change.view_as(anchors[i])
                """,
        ),
        Wrong(
            "new tensors, which the caller does not have",
            diagnosis=r"expected|still holds|must stay",
            edits=(
                ("anchors[i] -= rate * change.view_as(anchors[i])", "anchors[i] = anchors[i] - rate * change"),
                (
                    "layers[i].mul_(keep_own).add_((1 - keep_own) * anchors[i])",
                    "keep_own * layers[i] + (1 - keep_own) * anchors[i]",
                ),
            ),
        ),
        Wrong(
            "a message for each layer",
            diagnosis=r"right, but a rank makes \d calls where \d must do.*\n.*fit into one message",
            body="""
                for i in range(fragment, len(layers), fragments):
                    gradient = anchors[i] - layers[i]
                    dist.all_reduce(gradient, group=group)
                    anchors[i] -= rate * gradient / dist.get_world_size(group)
                    layers[i].mul_(keep_own).add_((1 - keep_own) * anchors[i])
                """,
        ),
        Wrong(
            "all layers are sent",
            diagnosis=r"right, but .*\n.*(that is what fragments are for|one message)",
            body="""
                gradient = torch.cat([(a - x).flatten() for a, x in zip(anchors, layers, strict=True)])
                dist.all_reduce(gradient, group=group)
                gradient /= dist.get_world_size(group)
                for i, change in enumerate(gradient.split([x.numel() for x in layers])):
                    if i % fragments == fragment:
                        anchors[i] -= rate * change
                        layers[i].mul_(keep_own).add_((1 - keep_own) * anchors[i])
                """,
        ),
    ),
)

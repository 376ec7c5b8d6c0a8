"""ranks.pair: one tensor, from one rank to another."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.ranks.plain import hand_over

from .common import shape_of


def the_target_has_it(case, inputs):
    return [{"x": inputs[case.source if rank == case.target else rank]["x"]} for rank in range(case.n)]


def arguments(case, rank):
    return {"x": case.tensor(rank, *shape_of(case)), "source": case.source, "target": case.target}


PUZZLE = Puzzle(
    name="ranks.pair",
    title="One rank has it, another one needs it",
    statement="""
        Every rank calls this function, with a tensor of its own. Afterwards `x` on the rank `target` holds what `x` on
        the rank `source` holds. On all other ranks nothing happens.

        `dist.get_rank(group)` says who you are, `dist.send(x, group=group, group_dst=...)` sends and
        `dist.recv(x, group=group, group_src=...)` fills `x` with what comes.

        Args:
            x: a contiguous tensor, of the same shape and dtype on every rank. On `target` it is overwritten.
            source: the rank of `group` that sends.
            target: the rank of `group` that receives. It may be the source: then there is nothing to do.
            group: the ranks that call this.

        Budget: one message.
        """,
    function=hand_over,
    cases=cases(worlds=(2, 4, 1, 3, 8), length=(5,), source=(0,), target=lambda n: [n - 1])
    + cases(worlds=(3, 5), length=(4,), source=(2,), target=(0, 1, 2))
    + cases(worlds=(4,), members=(1, 2, 3), length=(3,), source=(2,), target=(1,))
    + cases(worlds=(2,), length=(5,), source=(0,), target=(1,), dtype=(torch.int32,))
    + cases(worlds=(2,), length=(6,), source=(0,), target=(1,), shape=((2, 3),)),
    drawn=on_any_ranks(
        length=range(2, 40), source=lambda so_far: range(so_far.n), target=lambda so_far: range(so_far.n)
    ),
    inputs=arguments,
    oracle=the_target_has_it,
    tolerance=0,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 4 * case.length if case.source != case.target else 0,
            why="only the target needs it",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: int(case.source != case.target),
            why="any rank can talk to any other: no rank needs to pass it on, and none needs to answer",
        ),
    ),
    hints=(
        "All ranks run this text. Which of them must send, which must receive, and what do the others do?",
        "A send and its receive are one message. Each of the two names the other rank.",
        "`if rank == source: dist.send(...)`, `elif rank == target: dist.recv(...)`. And where the two are the same?",
    ),
    wrong=(
        Wrong(
            "the target forgets to receive",
            diagnosis=r"nobody is receiving|finished without receiving",
            edits=(("    elif rank == target:\n        dist.recv(x, group=group, group_src=source)\n", ""),),
        ),
        Wrong(
            "every rank sends, every rank receives",
            diagnosis=r"dst is yourself",
            body="""
                dist.send(x, group=group, group_dst=target)
                dist.recv(x, group=group, group_src=source)
                """,
        ),
        Wrong(
            "receives into another tensor",
            diagnosis=r"the buffer was a temporary copy",
            edits=(("dist.recv(x, ", "x = x.clone()\n        dist.recv(x, "),),
        ),
        Wrong(
            "sends to oneself",
            diagnosis=r"dst is yourself",
            edits=(("    if source == target:\n        return\n", ""),),
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"right where the group is the whole world|group rank",
            edits=(("group_dst=target", "dst=target"), ("group_src=source", "src=source")),
        ),
        Wrong(
            "to all ranks, in case they need it",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only the target needs it",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                for other in range(n) if rank == source else ():
                    if other != source:
                        dist.send(x, group=group, group_dst=other)
                if rank != source:
                    buffer = x if rank == target else torch.empty_like(x)
                    dist.recv(buffer, group=group, group_src=source)
                """,
        ),
        Wrong(
            "from hand to hand",
            diagnosis=r"right, but it takes \d steps where 1 must do.*\n.*no rank needs to pass it on",
            body="""
                rank, way = dist.get_rank(group), 1 if source < target else -1
                path = list(range(source, target + way, way)) if source != target else []
                if rank not in path:
                    return
                parcel = x if rank in (source, target) else x.clone()
                if rank != source:
                    dist.recv(parcel, group=group, group_src=rank - way)
                if rank != target:
                    dist.send(parcel, group=group, group_dst=rank + way)
                """,
        ),
        Wrong(
            "a buffer of float32, whatever x is",
            diagnosis=r"sends int32.*receives float32",
            edits=(
                ("import torch.distributed as dist\n", "import torch\nimport torch.distributed as dist\n"),
                (
                    "        dist.recv(x, group=group, group_src=source)\n",
                    "        buffer = torch.empty(x.shape)\n"
                    "        dist.recv(buffer, group=group, group_src=source)\n"
                    "        x.copy_(buffer)\n",
                ),
            ),
        ),
        Wrong(
            "a buffer as long as x has rows",
            diagnosis=r"sends 6 elements.*receives 2 elements",
            edits=(
                (
                    "        dist.recv(x, group=group, group_src=source)\n",
                    "        buffer = x.new_empty(len(x))\n"
                    "        dist.recv(buffer, group=group, group_src=source)\n"
                    "        x.copy_(buffer)\n",
                ),
            ),
        ),
    ),
)

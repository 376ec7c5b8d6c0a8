"""Orders of computation that fill the bubble, each a small table (`reference.pipeline_parallel.unroll`).

This is `plain.zb_h1_order` as a table, with: ZB-H2, and stages that lie in a V or in two directions.

Backward makes two things: the gradient of the input, for which the stage before is waiting, and those of the weights,
for which none is. 1F1B makes both before it answers. Here the second half, W, moves to where a rank would be idle.

| schedule  | bubble              | activations | a rank has                       | paper                          |
|-----------|---------------------|-------------|----------------------------------|--------------------------------|
| ZB-H1     | (p-1) (F+I-W)       | p           | a stage                          | Qi et al. 2023, "Zero bubble"  |
| ZB-H2     | (p-1) (F+I-2W)      | 2p - 1      | a stage                          | Qi et al. 2023, "Zero bubble"  |
| ZB-V      | 0 where F = I = W   | p           | two stages: there and back, a V  | Qi et al. 2023, "Zero bubble"  |
| DualPipe  | (p/2 - 1) F, F=I=W  | p + 1       | a stage of each of two pipelines | DeepSeek-AI 2024, V3           |
| DualPipeV | (p-1)/2 F, F=I=W    | p + 1/2     | two stages: there and back, a V  | Qi et al. 2025, "... the dual" |

F, I and W are the times of all layers of a rank for one micro-batch, forward and the two halves of backward. The bubble
is that of ranks which do not wait for each other between steps (`Simulation.longest`). Activations are counted in
micro-batches, of all layers of a rank, and are held until W.

The formulas hold where there are enough micro-batches to fill the pipeline, p for ZB-H1, 2p - 1 for ZB-H2 and ZB-V, 2p
for the others, an even number of them for DualPipe; and where W fits into what it is to fill: W <= F for ZB-H1, and
2W <= F+I for ZB-H2. DeepSeek's table gives DualPipe (p/2 - 1) (F&B + B - 3W), twice as much where F = I = W: there
forward and backward of a pair are one action, whose results leave when both are done, and here forward's leave before.
"""

from collections.abc import Callable

from reference.errors import BadInput, require_sizes
from reference.pipeline_parallel.orders import of_tables
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.unroll import Table, unroll


def zb_h1(p: int, m: int) -> Schedule:
    """As 1F1B, with each W as late as 1F1B's memory allows: rank r is r micro-batches behind with them.

    Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 2.1.
    """

    def table(r: int, m: int) -> Table:
        return [(p - 1 - r, "F"), (r, "F I"), (m - p + 1, "F I W"), (p - 1 - r, "I W"), (r, "W")]

    return of_tables(p, m, table, least=p)


def zb_h2(p: int, m: int) -> Schedule:
    """Forward runs so far ahead that no rank waits for the first gradient, and W fills what is left at the end.

    Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 2.2.
    """

    def table(r: int, m: int) -> Table:
        ahead = 2 * (p - 1 - r)
        return [(ahead, "F"), (2 * r, "F I"), (m - 2 * (p - 1), "F I W"), (ahead, "I W"), (2 * r, "W")]

    return of_tables(p, m, table, least=2 * p)


def zb_v(p: int, m: int) -> Schedule:
    """Micro-batches go through all ranks and back, so that the first rank has the last stage, too, and begins backward.

    Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 6.
    """

    def table(r: int, m: int) -> Table:
        both = m - (2 * (p - r) - 1 + r)
        return [
            (2 * (p - r) - 1, "F0"),
            (r, "F1 F0"),
            (p - r, "F1 I1 W"),
            (both, "F0 I0 W F1 I1 W"),
            (p - 1 - r, "I0 W F1 I1 W"),
            (r, "I0 I1"),
            (p - r, "I0 W0"),
            (r, "W1"),
            (r, "W0"),
        ]

    return _v_shaped(p, m, table, least=2 * p - 1)


def dual_pipe_v(p: int, m: int) -> Schedule:
    """DualPipe's order on a V: forward of one stage beside backward of the other, whose messages hide behind it.

    Action by action, torch's `ScheduleDualPipeV`, which takes 2p micro-batches or more; here there may be fewer.

    Qi et al. 2025, "DualPipe could be better without the dual" (DualPipeV, half of DeepSeek's DualPipe).
    """
    return _v_shaped(p, m, lambda r, m: _dual(p, m, r), least=2 * p)


def dual_pipe(p: int, m: int) -> Schedule:
    """Two pipelines in opposite directions over the same ranks: micro-batches enter at both ends.

    Each rank has two stages, r of the one pipeline and p - 1 - r of the other, so there are two copies of the model,
    whose gradients must be added up. Stage p + s is the copy of stage s. Even micro-batches go down, odd ones up.

    DeepSeek-AI 2024, "DeepSeek-V3 technical report", sec. 3.2.1, fig. 5.

    Raises:
        BadInput: if p is odd: then one rank would have no partner.
    """
    require_sizes(p=p, m=m)
    if p % 2:
        raise BadInput(f"DualPipe pairs ranks from both ends: it takes an even number, not {p}")
    half = max((m + 1) // 2, p)
    down, up = tuple(range(p)), tuple(range(p, 2 * p))

    def line(rank: int) -> list:
        work = [[(rank, 2 * k) for k in range(half)], [(2 * p - 1 - rank, 2 * k + 1) for k in range(half)]]
        from_end = min(rank, p - 1 - rank)  # ranks of the second half see the two directions exchanged
        return unroll(_dual(p // 2, half - p + 2 * (p // 2), from_end), work if rank < p // 2 else work[::-1])

    lines = tuple(tuple(line(rank)) for rank in range(p))
    return Schedule(lines, (*range(p), *reversed(range(p))), (down, up) * half).first(m)


def _dual(p: int, m: int, r: int) -> Table:
    """The eight phases of DualPipe, for rank r of p that micro-batches go through and come back from."""
    after = p - 1 - r
    return [
        (2 * after, "F0"),
        (r + 1, "F0 F1"),
        (after, "I1 W F1"),
        (m - 2 * p + r + 1, "F0 B1 F1 B0"),
        (after, "B1 F1 B0"),
        ((r + 1) // 2, "B1 B0"),
        ((r + 1) % 2, "B1 I0"),
        ((r + 1) // 2, "I1 I0"),
        (after, "W I0"),
        (r + 1, "W"),
    ]


def _v_shaped(p: int, m: int, table: Callable[[int, int], Table], least: int) -> Schedule:
    """Rank r has stages r and 2p - 1 - r; `least` micro-batches make the pattern, as for `of_tables`."""
    require_sizes(p=p, m=m)
    enough = max(m, least)
    lines = []
    for r in range(p):
        work = [[(stage, k) for k in range(enough)] for stage in (r, 2 * p - 1 - r)]
        lines.append(unroll(table(r, enough), work))
    return Schedule.straight(lines, [*range(p), *reversed(range(p))], enough).first(m)

"""How many micro-batches each stage has room for: stages differ, and their mean is none of them.

The first stage has the table and begins with most forwards, the last one has the head and needs room for one alone. A
planner that divides the model by p gives every stage the same limit: it runs out of memory at the ends, and leaves
memory unused between them (sail-sg/zero-bubble-pipeline-parallelism, issue 8).

Qi et al. 2023 (arXiv:2401.10241), sec. 3, whose automatic schedule takes such a limit.
"""


def room_of_stages(
    memory: int, layers: list[int], micro_batches: int, state: int, activation: int, table: int, head: int
) -> list[int] | None:
    """Micro-batches that each stage may have in flight; None if a stage has no room for one.

    Args:
        memory: bytes of a rank.
        layers: of each stage, in order.
        micro_batches: m, of a step: no stage holds more.
        state: bytes of a layer's parameters, gradients and optimizer.
        activation: bytes of a layer's activations of one micro-batch.
        table: bytes of the table of tokens and its state, on the first stage.
        head: bytes of the head, its state and its logits, on the last.
    """
    stages = len(layers)
    room = []
    for stage, here in enumerate(layers):
        held = here * state + (stage == 0) * table + (stage == stages - 1) * head
        wanted = min(2 * (stages - stage) - 1, micro_batches)
        room.append(min(wanted, (memory - held) // (here * activation)))
    return room if min(room) >= 1 else None

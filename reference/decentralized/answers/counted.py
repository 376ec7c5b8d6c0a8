"""What can be said of islands before any is started: when they are data parallelism, and what they send."""


def same_as_data_parallelism(
    islands: int, inner_steps: int, outer_rate: float, outer_momentum: float, inner: str, clips: bool
) -> bool:
    """Whether a run of islands has, after each round, the parameters of synchronous data parallelism, however long.

    Args:
        islands, inner_steps: how many, and steps of a round.
        outer_rate, outer_momentum: of the outer optimizer.
        inner: "sgd", "momentum" or "adamw".
        clips: whether an island clips its gradients.
    """
    if outer_rate != 1 or outer_momentum != 0:
        return False
    return islands == 1 or (inner_steps == 1 and inner != "adamw" and not clips)


def bytes_of_a_day(
    elements: int, islands: int, inner_steps: int, seconds: float, bits: int, megabits: float, duration: float
) -> tuple[float, float]:
    """What an island sends in `duration` seconds, and the share of the time in which it computes.

    Args:
        elements: parameters of the model.
        islands: n, which meet by a ring all-reduce.
        inner_steps: of a round.
        seconds: of an inner step.
        bits: of an element of a message.
        megabits: of a link, in 10^6 bits a second.
        duration: such as 86,400 s.
    """
    of_round = 2 * (islands - 1) / islands * elements * bits / 8
    computes, sends = inner_steps * seconds, 8 * of_round / (megabits * 1e6)
    return of_round * duration / (computes + sends), computes / (computes + sends)

"""PipeMare: no weights are kept, and three remedies for what that does.

Backward sees the newest weights, forward saw weights that are tau updates older. So what comes out of backward is no
gradient of anything, and it is applied late. With delay tau, of a stage and in updates:

    T1  rescheduling    steps are smaller by tau^(1 - k/K) in the first K updates, when weights change fastest
    T2  correction      backward goes through w - tau * velocity, a guess at what forward saw; velocity is the running
                        mean of what an update changes
    T3  warm-up         the first steps flush

Yang et al. 2021, "PipeMare: Asynchronous pipeline parallel DNN training", sec. 3. There tau is (2 (P - i) + 1) / N for
stage i of P, counted from 1, and N micro-batches in an update, since a rank goes forward and backward at once; in the
order of 1F1B, where it alternates, a micro-batch comes back after half as many others: (p - 1 - stage) / m.
"""

from dataclasses import dataclass

from torch import Tensor

from reference.errors import BadInput


@dataclass(frozen=True)
class PipeMareOptions:
    """What is done against the delay.

    Raises:
        BadInput: if the numbers make no sense.
    """

    updates: int  # K, over which steps become as large as without a delay
    remembered: float = 0.135  # D: so much of the velocity is left after tau updates; e^-2 by the paper's theory
    warm_up: int = 0  # updates that flush, before all others

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise BadInput(f"a learning rate is rescheduled over at least 1 update, not {self.updates}")
        if not 0 <= self.remembered < 1:
            raise BadInput(f"a share to remember is from 0 to below 1, not {self.remembered}")


def rescheduled(rate: float, delay: float, update: int, updates: int) -> float:
    """T1: the learning rate of a stage.

    rate / tau^p, where p = 1 - min(k / K, 1). Where tau is below 1, the rate stays: no delay makes steps larger.

    Args:
        rate: without a delay.
        delay: tau, of the stage, in updates.
        update: k, since weights were late for the first time.
        updates: K.
    """
    return rate / max(delay, 1.0) ** (1 - min(update / updates, 1))


def decay(delay: float, remembered: float) -> float:
    """T2: how much of the velocity is left after an update: gamma = D^(1 / tau), so that after tau of them D is left.

    Args:
        delay: tau, of the stage, in updates; without a delay nothing is left, and nothing needed.
        remembered: D.
    """
    return remembered ** (1 / delay) if delay else 0.0


def velocity_after(velocity: Tensor, before: Tensor, after: Tensor, decay: float) -> Tensor:
    """T2: the running mean of what updates change: gamma * velocity + (1 - gamma) * (after - before).

    Args:
        velocity: before the update; zero at first.
        before, after: the weights before and after the update, of the same shape.
        decay: gamma.
    """
    return decay * velocity + (1 - decay) * (after - before)


def corrected(weight: Tensor, velocity: Tensor, delay: float) -> Tensor:
    """T2: what backward goes through instead of the newest weights: w - tau * velocity.

    Args:
        weight: the newest.
        velocity: of the same shape.
        delay: tau, of the stage: how many updates older the weights are that forward saw.
    """
    return weight - delay * velocity

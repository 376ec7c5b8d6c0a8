"""When islands meet: after how many steps a round ends, from the configuration alone, so that all agree without a word.

    H = 4, 10 steps                    rounds end after steps 4, 8 and, as everything does, 10
    the same with 3 synchronous steps  after steps 3 (islands are equal there anyway), 7 and 10

A round is H inner steps: the counter moves, and then it is looked at. Where it is looked at first, the first round has
H + 1 steps, and all later ones are shifted by one; so it is in exogym's DiLoCo (`exogym/strategy/diloco.py` of
github.com/exo-explore/gym at d33a3581, which `Strategy.step` counts for after the outer step).

With the quadratic synchronisation rule (Gu et al. 2024, arXiv:2310.14423) a round that begins with a learning rate r
has H (peak / r)^2 steps: islands drift apart by about r^2 a step, and the drift of a round stays what it is. While the
rate still rises rounds have H steps.
"""

from functools import lru_cache

from reference.choices import Outer, RoundLength
from reference.config import TrainConfig, learning_rate
from reference.islands import APART


@lru_cache(maxsize=8)
def ends_of_rounds(config: TrainConfig) -> frozenset[int]:
    """How many steps have been taken at the end of each round; the last step ends one."""
    meets, taken, ends = config.meets, config.meets.synchronous_steps, set()
    while taken < config.steps:
        taken = min(taken + length(config, taken), config.steps)
        ends.add(taken)
    return frozenset(ends) if meets.inner_steps else frozenset()


def length(config: TrainConfig, taken: int) -> int:
    """Inner steps of a round that begins after so many steps."""
    meets = config.meets
    if meets.round_length is RoundLength.CONSTANT or taken < config.warmup:
        return meets.inner_steps
    return int(meets.inner_steps * (config.learning_rate / learning_rate(config, taken)) ** 2)


def all_meet(config: TrainConfig, taken: int) -> bool:
    """Whether ranks of all islands come together after so many steps anyway: only then may they ask each other more."""
    if config.outer is Outer.NONE or taken <= config.meets.synchronous_steps:
        return True
    return config.outer not in APART and taken in ends_of_rounds(config)


def whose_loss(config: TrainConfig) -> str:
    """Of which islands a loss is that one of them tells when the run stops: " of island 0" where they may differ."""
    stopped = config.stop_after not in (None, config.steps) and not config.stop_after <= config.meets.synchronous_steps
    return " of island 0" if config.islands > 1 and (stopped or config.outer is Outer.BRANCHES) else ""

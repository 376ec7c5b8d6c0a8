"""What a run says of its islands: groups of ranks that train by themselves, and meet at the end of a round."""

import math
from dataclasses import dataclass, fields
from types import MappingProxyType

from reference.choices import Aggregation, GossipTopology, IslandText, LateRate, Lie, Outer, RoundLength, Wire
from reference.errors import BadInput
from reference.fields import listed, option

WITHOUT_WAITING = (Outer.ASYNC_DILOCO, Outer.ASYNC_SGD)
APART = (*WITHOUT_WAITING, Outer.BRANCHES)  # these do not come together at the end of a round
WITH_OUTER_OPTIMIZER = (Outer.DILOCO, Outer.STREAMING, Outer.EAGER, Outer.NOLOCO, Outer.ASYNC_DILOCO)
WITHOUT_ROUNDS = (Outer.NONE, Outer.BRANCHES)
WITH_ONE_MEAN = (Outer.LOCAL_SGD, Outer.DILOCO, Outer.FEDADAM, Outer.FEDPROX)  # of changes, of all, at once
TAKEN_BY = {
    "inner_steps": tuple(each for each in Outer if each not in WITHOUT_ROUNDS),
    "round_length": tuple(each for each in Outer if each not in (*WITHOUT_ROUNDS, Outer.STREAMING, Outer.SPARTA)),
    "synchronous_steps": tuple(each for each in Outer if each is not Outer.NONE),
    "island_text": tuple(each for each in Outer if each is not Outer.NONE),
    "taking_part": (*WITH_ONE_MEAN, Outer.SCAFFOLD),
    "aggregation": WITH_ONE_MEAN,
    "liars": WITH_ONE_MEAN,
    "lying_islands": WITH_ONE_MEAN,
    "clip_change": WITH_ONE_MEAN,
    "noise_multiplier": WITH_ONE_MEAN,
    "secure_sum": (*WITH_ONE_MEAN, Outer.SCAFFOLD),
    "outer_rate": (*WITH_OUTER_OPTIMIZER, Outer.FEDADAM),
    "outer_momentum": WITH_OUTER_OPTIMIZER,
    "wire": (Outer.LOCAL_SGD, Outer.DILOCO, Outer.STREAMING, Outer.EAGER, Outer.FEDADAM, Outer.FEDPROX),
    "fragments": (Outer.STREAMING,),
    "overlap_steps": (Outer.STREAMING,),
    "keep_own": (Outer.STREAMING,),
    "elasticity": (Outer.EASGD,),
    "proximal": (Outer.FEDPROX,),
    "sparse_share": (Outer.SPARTA,),
    "topology": (Outer.GOSSIP,),
    "staleness_bound": WITHOUT_WAITING,
    "late_rate": WITHOUT_WAITING,
    "order_of": WITHOUT_WAITING,
}
"""Which ways of meeting have a use for an option."""


@dataclass(frozen=True, kw_only=True)
class IslandOptions:
    """How many islands there are, and how they meet. None stands for what the paper of the method takes.

    Raises:
        BadInput: if the numbers make no sense, or are of another way to meet.
    """

    islands: int = option(
        1, "Groups of ranks, each with a plan of its own and its part of each batch, that meet by --outer. Lesson 16."
    )
    outer: Outer = option(
        Outer.NONE,
        "What --islands do together at the end of a round: {words}. FedAvg is local-sgd.",
        within=("islands",),
    )
    inner_steps: int | None = option(
        None,
        "With --outer: steps of a round, with sparta, gossip and async-sgd 1; 50 by default.",
        within=("islands", "outer"),
    )
    round_length: RoundLength | None = option(
        None,
        "With --outer: how rounds change, {words}; with qsr one of a learning rate r has the quarter of the peak's "
        "over r, squared, but --inner-steps at least.",
        within=("islands", "outer"),
    )
    synchronous_steps: int | None = option(
        None,
        "With --outer: in so many steps at the beginning islands share gradients, as data parallelism does.",
        within=("islands", "outer"),
    )
    island_text: IslandText | None = option(
        None,
        "With --outer: what islands read of the text, {words}; own is a contiguous part for each, as branches "
        "have it by default. What is held out is the same for all.",
        within=("islands", "outer"),
    )
    taking_part: float | None = option(
        None,
        "With --outer: the share of islands, drawn anew for each round, that count in its mean, while others train in "
        "vain and take what comes of it; 1 by default.",
        within=("islands", "outer"),
    )
    aggregation: Aggregation | None = option(
        None,
        "With --outer: what islands agree on of their changes, {words}; all but the mean stand --liars.",
        within=("islands", "outer"),
    )
    liars: int | None = option(
        None,
        "With --aggregation: so many islands may say anything, and the others still learn; 1 by default.",
        within=("islands", "outer", "aggregation"),
    )
    lying_islands: str | None = option(
        None,
        "With --outer: islands that lie, and how, to see what becomes of the others; 1,3:sign-flip is islands 1 and 3, "
        "which say the way back, ten times as far, and 3:large a million in each number.",
        within=("islands", "outer"),
    )
    clip_change: float | None = option(
        None,
        "With --outer: differential privacy of islands. What one has changed is shortened to this norm, and noise is "
        "added to the sum; with --taking-part each is drawn by itself. A run says its epsilon, which is of texts with "
        "--island-text own.",
        within=("islands", "outer"),
    )
    noise_multiplier: float | None = option(
        None,
        "With --clip-change: the deviation of the noise, as a multiple of that norm; 1 by default.",
        within=("islands", "outer", "clip_change"),
    )
    secure_sum: bool = option(
        False,
        "With --outer: islands say what they have changed under masks that cancel in the sum.",
        within=("islands", "outer"),
    )
    outer_rate: float | None = option(
        None, "Learning rate of the outer optimizer, with fedadam 0.03; 0.7 by default.", within=("islands", "outer")
    )
    outer_momentum: float | None = option(
        None, "Nesterov momentum of the outer optimizer, with noloco 0.5; 0.9 by default.", within=("islands", "outer")
    )
    wire: Wire | None = option(
        None, "Numbers in which islands say what they have changed: {words}.", within=("islands", "outer")
    )
    fragments: int | None = option(
        None,
        "With --outer streaming: in so many parts, layer by layer, a model is sent; 2 by default.",
        within=("islands", "outer"),
    )
    overlap_steps: int | None = option(
        None,
        "With --outer streaming: inner steps between sending a fragment and using what has come; 1 by default.",
        within=("islands", "outer"),
    )
    keep_own: float | None = option(
        None,
        "With --outer streaming: the weight of an island's own parameters beside those of all, without overlap 0; "
        "0.5 by default.",
        within=("islands", "outer"),
    )
    elasticity: float | None = option(
        None,
        "With --outer easgd: how far the centre moves to the mean of all islands; 0.9 by default.",
        within=("islands", "outer"),
    )
    proximal: float | None = option(
        None,
        "With --outer fedprox: mu, the strength of the spring to where the round began; 0.01 by default.",
        within=("islands", "outer"),
    )
    sparse_share: float | None = option(
        None,
        "With --outer sparta: the share of parameters that islands average; 0.005 by default.",
        within=("islands", "outer"),
    )
    topology: GossipTopology | None = option(
        None,
        "With --outer gossip: which islands average with which, {words}; ring by default.",
        within=("islands", "outer"),
    )
    staleness_bound: int | None = option(
        None,
        "With --outer async-diloco or async-sgd: rounds that an island may be ahead of the slowest; 0 is to wait for "
        "all, without it none waits.",
        within=("islands", "outer"),
    )
    late_rate: LateRate | None = option(
        None,
        "With --outer async-diloco or async-sgd: how much a change counts that comes late, {words}.",
        within=("islands", "outer"),
    )
    order_of: str | None = option(
        None,
        "With --outer async-diloco or async-sgd: a folder of checkpoints; changes are applied in the order of its run, "
        "which makes this one equal to it.",
        within=("islands", "outer"),
        stored=False,
    )

    def __post_init__(self) -> None:
        if self.islands < 1:
            raise BadInput(f"there is 1 island or more, not {self.islands}")
        if self.islands > 1 and self.outer is Outer.NONE:
            raise BadInput(f"{self.islands} islands never meet: say how, such as --outer diloco")
        for name, methods in TAKEN_BY.items():
            said = getattr(self, name)
            if not (said is None or said is False) and self.outer not in methods:
                flag = f"--{name.replace('_', '-')}"
                raise BadInput(f"{flag} is of --outer {', '.join(methods)}, not of {self.outer}")
        if self.outer is not Outer.NONE:
            self._check_numbers()
            self._check_aggregation()

    def _check_numbers(self) -> None:
        meets = self.meets
        for name in ("inner_steps", "fragments"):
            if getattr(meets, name) < 1:
                raise BadInput(f"{name.replace('_', ' ')} are 1 or more, not {getattr(meets, name)}")
        for name in ("synchronous_steps", "overlap_steps"):
            if getattr(meets, name) < 0:
                raise BadInput(f"{name.replace('_', ' ')} are 0 or more, not {getattr(meets, name)}")
        if meets.staleness_bound is not None and meets.staleness_bound < 0:
            raise BadInput(f"an island is 0 or more rounds ahead of the slowest, not {meets.staleness_bound}")
        if not 0 < meets.taking_part <= 1:
            raise BadInput(f"a share of islands is more than 0 and at most 1, not {meets.taking_part}")
        if not 0 < meets.outer_rate < math.inf:
            raise BadInput(f"an outer learning rate is positive, and finite, not {meets.outer_rate}")
        if not 0 <= meets.outer_momentum < 1:
            raise BadInput(f"an outer momentum is at least 0 and less than 1, not {meets.outer_momentum}")
        if not 0 <= meets.keep_own < 1:
            raise BadInput(f"an island keeps a weight of at least 0 and less than 1 of its own, not {meets.keep_own}")
        if not 0 < meets.elasticity < 1:
            raise BadInput(f"elasticity is between 0 and 1, not {meets.elasticity}")
        if not 0 <= meets.proximal < math.inf:
            raise BadInput(f"mu of fedprox is 0 or more, and finite, not {meets.proximal}")
        if not 0 < meets.sparse_share <= 1:
            raise BadInput(f"a share of parameters is more than 0 and at most 1, not {meets.sparse_share}")
        if self.outer is Outer.STREAMING and not meets.overlap_steps < meets.inner_steps:
            raise BadInput(
                f"a fragment is sent every {meets.inner_steps} steps: it is under way for fewer, not for "
                f"{meets.overlap_steps}"
            )
        if self.outer is Outer.STREAMING and meets.fragments > meets.inner_steps:
            raise BadInput(f"in {meets.inner_steps} steps one fragment each can be sent, not {meets.fragments}")
        if self.outer is Outer.NOLOCO and self.islands % 2:
            raise BadInput(f"islands meet in pairs: take an even number of them, not {self.islands}")
        if meets.topology is GossipTopology.TORUS and not any(self.islands % n == 0 for n in range(2, self.islands)):
            raise BadInput(
                f"{self.islands} islands are no rows and columns: take --topology ring, or a number of them that "
                "divides, such as 4, 6 or 9"
            )

    def _check_aggregation(self) -> None:
        """What goes together of a mean that is robust, private or secure."""
        meets, is_robust = self.meets, self.meets.aggregation is not Aggregation.MEAN
        robust = listed([word for word in Aggregation if word is not Aggregation.MEAN])
        if meets.liars < 0:
            raise BadInput(f"0 islands lie, or more, not {meets.liars}")
        if self.liars is not None and not is_robust:
            raise BadInput(f"one liar moves a mean anywhere: --liars takes --aggregation {robust}")
        if self.noise_multiplier is not None and self.clip_change is None:
            raise BadInput("noise hides a change that is no longer than some norm: say --clip-change, too")
        if self.clip_change is not None and not 0 < self.clip_change < math.inf:
            raise BadInput(f"a change is clipped to a norm above 0, and finite, not to {self.clip_change}")
        if not 0 <= meets.noise_multiplier < math.inf:
            raise BadInput(f"a noise multiplier is 0 or more, and finite, not {meets.noise_multiplier}")
        if liars := [island for island in meets.lies if not 0 <= island < self.islands]:
            raise BadInput(f"island {liars[0]} cannot lie: islands are 0 to {self.islands - 1}")
        if is_robust and self.secure_sum:
            raise BadInput(
                f"{meets.aggregation} looks at the change of each island, and a secure sum shows none: leave out "
                "--secure-sum, or --aggregation"
            )
        if is_robust and self.clip_change is not None:
            raise BadInput(
                f"what noise hides in a sum stands out in {meets.aggregation}, for which no epsilon is known here: "
                "leave out --clip-change, or --aggregation"
            )
        if meets.agrees_on_plain_mean:
            return
        if meets.wire is not Wire.FULL:
            raise BadInput(
                f"{meets.wire} rounds what a plain mean adds up, and masks, norms and liars are of numbers that are "
                "not rounded: leave out --wire"
            )
        if meets.synchronous_steps:
            raise BadInput(
                "in its first steps this run would share gradients, by a plain mean, unmasked and without noise: leave "
                "out --synchronous-steps"
            )

    @property
    def meets(self) -> "Meets":
        """The same with a value for each option."""
        kind = self.outer
        defaults = {
            "inner_steps": 1 if kind in (Outer.SPARTA, Outer.GOSSIP, Outer.ASYNC_SGD) else 50,
            "round_length": RoundLength.CONSTANT,
            "synchronous_steps": 0,
            "island_text": IslandText.OWN if kind is Outer.BRANCHES else IslandText.SHARED,
            "taking_part": 1,
            "aggregation": Aggregation.MEAN,
            "liars": 1,
            "lying_islands": None,
            "clip_change": None,
            "noise_multiplier": 1,
            "secure_sum": False,
            "outer_rate": 0.03 if kind is Outer.FEDADAM else 0.7,
            "outer_momentum": 0.5 if kind is Outer.NOLOCO else 0.9,
            "wire": Wire.FULL,
            "fragments": 2 if kind is Outer.STREAMING else 1,
            "overlap_steps": 1 if kind is Outer.STREAMING else 0,
            "elasticity": 0.9,
            "proximal": 0.01,
            "sparse_share": 0.005,
            "topology": GossipTopology.RING,
            "staleness_bound": None,
            "late_rate": LateRate.CONSTANT,
            "order_of": None,
        }
        said = {name: getattr(self, name) for name in TAKEN_BY}
        found = defaults | {name: value for name, value in said.items() if value is not None}
        found.setdefault("keep_own", 0.5 if found["overlap_steps"] else 0.0)
        return Meets(kind, **found)


ONE_ISLAND = MappingProxyType({each.name: each.default for each in fields(IslandOptions)})
"""Options of a run without islands."""


@dataclass(frozen=True)
class Meets:
    """How islands meet: `IslandOptions` without anything left open."""

    outer: Outer
    inner_steps: int
    round_length: RoundLength
    synchronous_steps: int
    island_text: IslandText
    taking_part: float
    aggregation: Aggregation
    liars: int
    lying_islands: str | None
    clip_change: float | None
    noise_multiplier: float
    secure_sum: bool
    outer_rate: float
    outer_momentum: float
    wire: Wire
    fragments: int
    overlap_steps: int
    keep_own: float
    elasticity: float
    proximal: float
    sparse_share: float
    topology: GossipTopology
    staleness_bound: int | None
    late_rate: LateRate
    order_of: str | None

    @property
    def agrees_on_plain_mean(self) -> bool:
        """Whether islands take the mean of what they have changed, as it is."""
        private, lies = self.clip_change is not None, self.lying_islands is not None
        return self.aggregation is Aggregation.MEAN and not (private or lies or self.secure_sum)

    @property
    def lies(self) -> dict[int, Lie]:
        """The islands that lie, and how.

        Raises:
            BadInput: for a word that does not say it.
        """
        if self.lying_islands is None:
            return {}
        islands, _, how = self.lying_islands.partition(":")
        try:
            return dict.fromkeys(map(int, islands.split(",")), Lie(how))
        except ValueError:
            raise BadInput(
                f"--lying-islands is numbers of islands and {listed(Lie)}, such as 1,3:sign-flip, not "
                f"{self.lying_islands}"
            ) from None

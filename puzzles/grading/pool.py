"""Warm, watched clusters for untrusted code, one for each world size, started when they are first needed.

Ranks run one text and no other: after a check, new ones take their place.
"""

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator

from reference.cluster import Cluster

PRELOAD = (
    "puzzles.grading.driver",
    "puzzles.grading.drives",
    "puzzles.grading.drives.compression",
    "puzzles.grading.drives.context_heads",
    "puzzles.grading.drives.context_parallel",
    "puzzles.grading.drives.data_parallel",
    "puzzles.grading.drives.expert_parallel",
    "puzzles.grading.drives.expert_routing",
    "puzzles.grading.drives.memory",
    "puzzles.grading.drives.pipeline_parallel",
    "puzzles.grading.drives.pipeline_programs",
    "puzzles.grading.drives.pipeline_steps",
    "puzzles.grading.drives.resilience",
    "puzzles.grading.drives.sequence_parallel",
    "puzzles.grading.drives.tensor_parallel",
    "puzzles.grading.drives.zero",
    "puzzles.grading.drives.zero_bubble",
    "puzzles.grading.warm_up",
    "puzzles.grading.schedules",
    "reference.collectives.all_gather",
    "reference.collectives.all_reduce",
    "reference.collectives.exchange",
    "reference.collectives.hypercube",
    "reference.collectives.reduce_scatter",
    "reference.collectives.reduction",
    "reference.composition.plain",
    "reference.compression.answers.bits",
    "reference.compression.answers.sign_bits",
    "reference.compression.answers.one_bit",
    "reference.compression.plain",
    "reference.compression.plain_memory",
    "reference.context_parallel.answers.exchange",
    "reference.context_parallel.plain",
    "reference.data_parallel.initial",
    "reference.data_parallel.replicated",
    "reference.decentralized.parabola",
    "reference.expert_parallel.answers.exchange",
    "reference.memory.recompute",
    "reference.models.dropout",
    "reference.pipeline_parallel.passes",
    "reference.pipeline_parallel.run",
    "reference.pipeline_parallel.schedule",
    "reference.resilience.answers.momentum",
    "reference.decentralized.answers.mask",
    "reference.sequence_parallel.plain",
    "reference.tensor_parallel.plain",
    "reference.zero.plain",
    "reference.zero.plain_matrices",
)  # all drives, and all that is given: the ranks of a check can read nothing of the course
BACKWARD = ("torch.fx.experimental.symbolic_shapes",)  # what a backward pass imports that is given a gradient
WARM_UP = "puzzles.grading.warm_up:warm_up"
USUAL = (1, 2, 3, 4, 5, 8)  # world sizes that most puzzles ask for
TIME_LIMIT = 8.0  # seconds for all cases of one world size; correct ones take a fraction of one


class Pool:
    """Clusters by world size, kept warm until `close`.

    Args:
        timeout: seconds for all cases of one world size.
        forgets: have new ranks for each text, which rehearse a check before it comes. Texts that one trusts, such as
            the course's own, need neither.
    """

    def __init__(self, timeout: float = TIME_LIMIT, *, forgets: bool = True) -> None:
        self.timeout, self.forgets = timeout, forgets
        self.lock = threading.RLock()  # one check at a time
        self._clusters: dict[int, Cluster] = {}
        self._spares: dict[int, Cluster] = {}  # second ones of some sizes, for what only new ranks may run
        self.unenforced: tuple[str, ...] = ()  # walls that this machine does not have
        self._distrusted = False
        self._used: dict[Cluster, None] = {}  # those whose ranks have run a text
        self._more: dict[str, None] = {}  # modules that some puzzle needs besides the usual ones

    def cluster(self, world_size: int) -> Cluster:
        """The cluster of this size, to run a text."""
        cluster = self._started(self._clusters, world_size)
        self._used[cluster] = None
        return cluster

    def fresh(self, world_size: int) -> Cluster:
        """The cluster of this size, with ranks that have run nothing: the spare one, where this one has."""
        if self._started(self._clusters, world_size) in self._used:
            spare = self._started(self._spares, world_size)
            self._clusters[world_size], self._spares[world_size] = spare, self._clusters[world_size]
            if spare in self._used:
                spare.renew()
        return self.cluster(world_size)

    def _started(self, clusters: dict[int, Cluster], world_size: int) -> Cluster:
        if world_size not in clusters:
            clusters[world_size] = Cluster(
                world_size,
                watch=True,
                timeout=self.timeout,
                untrusted=True,
                preload=(*PRELOAD, *self._more),
                warm_up=WARM_UP if self.forgets else "",
            )
        return clusters[world_size]

    def prepare(self, world_sizes: Iterable[int], spare: Iterable[int] = ()) -> None:
        """Begin to start clusters, and second ones of the sizes in `spare`; they come up while the caller continues."""
        for world_size in world_sizes:
            self._started(self._clusters, world_size)
        for world_size in spare:
            self._started(self._spares, world_size)

    def ready(self) -> None:
        """Wait until all ranks are up, as they are while the learner reads a verdict."""
        for cluster in (*self._clusters.values(), *self._spares.values()):
            cluster.ready()

    def need(self, modules: Iterable[str]) -> None:
        """Have the ranks import these, too, before they are forked; those that are up without them start again."""
        if new := dict.fromkeys(modules).keys() - self._more.keys():
            self._more |= dict.fromkeys(new)
            self.close()

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """Around all that one text runs: new ranks then take the place of those that it has run on.

        They are forked while no check waits, and nothing that the text left behind reaches the next one.
        """
        try:
            yield
        finally:
            for cluster in self._used:
                self.unenforced = cluster.unenforced or self.unenforced
            if self.forgets or self._distrusted:
                used, self._used, self._distrusted = self._used, {}, False
                for cluster in used:
                    cluster.renew()

    def distrust(self) -> None:
        """The text that runs has touched what is not its own: have new ranks after it in any case."""
        self._distrusted = True

    def discard(self, world_size: int) -> None:
        """End the ranks of this size."""
        for cluster in (self._clusters.pop(world_size, None), self._spares.pop(world_size, None)):
            if cluster is not None:
                self._used.pop(cluster, None)
                cluster.close()

    def close(self) -> None:
        """End all ranks."""
        for world_size in {*self._clusters, *self._spares}:
            self.discard(world_size)


@functools.lru_cache(maxsize=1)
def _of_process(owner: int) -> Pool:
    pool = Pool()
    atexit.register(pool.close)
    return pool


def shared() -> Pool:
    """The one pool of this process."""
    return _of_process(os.getpid())

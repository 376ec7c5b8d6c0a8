"""What islands agree on, beside a plain mean: robust, private and secure, each held to one process in any plan."""

import hashlib
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import Aggregation, Outer, Wire
from reference.cluster import Cluster, RankError
from reference.config import TrainConfig
from reference.data_parallel import gather_full
from reference.decentralized.absences import require_can
from reference.decentralized.aggregation import DELTA, FRACTION
from reference.decentralized.clients import volunteers
from reference.decentralized.privacy import epsilon
from reference.errors import BadInput
from reference.islands import WITH_ONE_MEAN
from reference.memory.precision import PRECISIONS
from reference.parallelize import DataParallelism, Plan
from reference.saves import Saves
from reference.train import Training, require_fit, train, validation_loss
from reference.zero.checkpoint_folder import checkpoints

from .one_process import ENDS, STEPS, H, Models, alone, config_of, far_apart, named, on_ranks
from .test_client_islands import METHODS, Clients, Momentum, Parameters, hold
from .test_islands import CLOSE
from .test_saved_islands import sitting

ROBUST = [word for word in Aggregation if word is not Aggregation.MEAN]
PLANS = {"fsdp": Plan(DataParallelism.FSDP), "tensor": Plan(tensor_parallel=2)}
OF_ALL = {Outer.LOCAL_SGD: (Clients, {}), Outer.DILOCO: (Momentum, {}), **METHODS}
ROUNDED = 2.0 ** -(FRACTION + 1)
IN_PLANS = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def robust(word: Aggregation, rows: np.ndarray, liars: int) -> np.ndarray:
    """As papers have it, of changes [n, N]."""
    if word is Aggregation.MEDIAN:
        return np.median(rows, axis=0)
    if word is Aggregation.TRIMMED_MEAN:
        return np.sort(rows, axis=0)[liars : len(rows) - liars].mean(0)
    scores = [sorted(float(((a - b) ** 2).sum()) for b in rows)[1 : len(rows) - liars - 1] for a in rows]
    return rows[int(np.argmin([sum(each) for each in scores]))]


def agreeing(config: TrainConfig, agree: Callable[[int, Tensor, list[int]], Tensor]) -> Clients:
    """A method of one process in which islands agree on other than the mean.

    Args:
        config: of the run.
        agree: after so many steps, of the changes of those that count, new - old: [n, N] -> [N].
    """
    kind, _ = OF_ALL[config.outer]

    class Agreeing(kind):
        def now(self, models: Models, drawn: list[int]) -> Parameters:
            begin = torch.cat([x.flatten() for x in self.anchor.values()])
            ends = [torch.cat([named(models[i])[name].detach().flatten() for name in self.anchor]) for i in drawn]
            changes = torch.stack([end - begin for end in ends]) if ends else begin.new_zeros(0, len(begin))
            agreed = agree(self.taken, changes, drawn).split([x.numel() for x in self.anchor.values()])
            return {name: x + y.view_as(x) for (name, x), y in zip(self.anchor.items(), agreed, strict=True)}

    return Agreeing(config)


def hold_agreeing(cluster: Cluster, config: TrainConfig, agree: Callable, plan: Plan) -> None:
    clients = agreeing(config, agree)
    hold(cluster, config, clients.meet, clients.correct, plan)


def robust_of(config: TrainConfig) -> Callable:
    word, liars, lies = config.aggregation, config.meets.liars, config.meets.lies

    def agree(taken: int, changes: Tensor, drawn: list[int]) -> Tensor:
        rows = [x * (-10 if island in lies else 1) for island, x in zip(drawn, changes.numpy(), strict=True)]
        return torch.from_numpy(robust(word, np.stack(rows), liars))

    return agree


@IN_PLANS
@pytest.mark.parametrize("word", ROBUST)
def test_islands_of_any_plan_agree_by_each_rule(eight: Cluster, word: Aggregation, plan: Plan) -> None:
    """Of four islands one lies, but for Krum, which needs five for one."""
    krum = word is Aggregation.KRUM
    options = {"liars": 0} if krum else {"lying_islands": "2:sign-flip"}
    config = config_of(Outer.DILOCO, 4, aggregation=word, **options)
    hold_agreeing(eight, config, robust_of(config), plan)


@pytest.mark.parametrize("outer", WITH_ONE_MEAN)
def test_each_way_to_meet_that_takes_a_mean_takes_a_median(four: Cluster, outer: Outer) -> None:
    config = config_of(outer, 4, aggregation=Aggregation.MEDIAN, **OF_ALL[outer][1])
    hold_agreeing(four, config, robust_of(config), Plan())


def test_a_rule_looks_at_those_that_count_alone(four: Cluster) -> None:
    for word, liars in ((Aggregation.MEDIAN, 1), (Aggregation.KRUM, 0)):
        config = config_of(Outer.LOCAL_SGD, 4, aggregation=word, liars=liars, taking_part=0.75)
        hold_agreeing(four, config, robust_of(config), Plan())


def loss_of(config: TrainConfig) -> float:
    return validation_loss(train(config, dist.group.WORLD, torch.device("cpu")))


def test_a_liar_ruins_the_mean_and_no_rule_that_stands_one(clusters: Callable[..., Cluster]) -> None:
    five = clusters(5)
    long = {"steps": 40, "inner_steps": 4, "batch": 10, "precision": PRECISIONS["fp32"], "learning_rate": 1e-2}
    honest = config_of(Outer.LOCAL_SGD, 5, **long)
    best = five.run(loss_of, honest)[0]
    lied_to = replace(honest, lying_islands="3:sign-flip")
    among = {word: five.run(loss_of, replace(lied_to, aggregation=word)) for word in Aggregation}
    assert not among[Aggregation.MEAN][0] < np.log(256)  # worse than to know nothing
    for word in ROBUST:
        assert best - 0.1 < among[word][0] < best + 0.3
        assert max(among[word]) == min(among[word])


def on_private_ranks(config: TrainConfig, plan: Plan) -> tuple[Parameters, list[int], list[str]]:
    """On this rank: parameters of its island, the secret of the noise, and what is told at the end."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    for step in range(config.stop_after or config.steps):
        training.backward(step)
        training.update(step)
    return gather_full(training.form), training.updates.meeting.aggregate.secret, training.told()


def drawn(secret: list[int], taken: int, what: str) -> int:
    return int(hashlib.sha256(f"{secret} {taken} {what}".encode()).hexdigest()[:16], 16) // 2


CLIP, NOISE = 0.35, 0.02  # in three rounds islands change by 0.9, 0.5 and 0.05


class Private(Clients):
    """DP-FedAvg as its paper has it, with noise of a secret."""

    def __init__(self, config: TrainConfig, secret: list[int]) -> None:
        super().__init__(config)
        self.secret, self.norms = secret, []

    def draw(self, n: int) -> list[int]:
        return volunteers(n, self.config.meets.taking_part, self.taken, drawn(self.secret, self.taken, "islands") >> 24)

    def now(self, models: Models, drawn_now: list[int]) -> Parameters:
        total = {name: torch.zeros_like(x) for name, x in self.anchor.items()}
        for island in drawn_now:
            change = {name: p.detach() - self.anchor[name] for name, p in named(models[island]).items()}
            self.norms.append(sum(float(x.square().sum()) for x in change.values()) ** 0.5)
            for name, x in change.items():
                total[name] += x * min(1.0, CLIP / self.norms[-1])
        for name, x in total.items():
            generator = torch.Generator().manual_seed(drawn(self.secret, self.taken, name))
            x -= NOISE * CLIP * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        expected = self.config.meets.taking_part * len(models)
        return {name: x + total[name] / expected for name, x in self.anchor.items()}


def private(outer: Outer = Outer.LOCAL_SGD, **options) -> TrainConfig:
    return config_of(outer, 2, clip_change=CLIP, noise_multiplier=NOISE, **options)


@IN_PLANS
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_private_islands_are_those_of_one_process(four: Cluster, plan: Plan, share: float) -> None:
    config = private(taking_part=share)
    found = four.run(on_private_ranks, config, plan)
    secrets = [secret for _, secret, _ in found]
    assert secrets == [secrets[0]] * 4
    clients = Private(config, secrets[0])
    models = alone(config, clients.meet)
    for rank, (parameters, _, told) in enumerate(found):
        assert far_apart(parameters, models[rank // 2]) < CLOSE
        spent = epsilon(share, NOISE, len(ENDS), DELTA)
        assert told == [f"differential privacy of each island after 3 rounds: epsilon {spent:.3g}, delta 1e-05"]
    if share == 1.0:
        assert min(clients.norms) < CLIP < max(clients.norms)


def test_no_two_runs_have_the_same_noise(four: Cluster) -> None:
    first, second = (four.run(on_private_ranks, private(stop_after=H), Plan())[0] for _ in range(2))
    assert first[1] != second[1] and far_apart(first[0], second[0]) > NOISE * CLIP


def first_round(config: TrainConfig, meet: Callable) -> Models:
    """Islands of one process where the first round has ended."""
    kept: list = []

    def once(taken: int, models: Models) -> None:
        meet(taken, models)
        if taken == H:
            kept[:] = deepcopy(models)

    alone(config, once)
    return kept


@IN_PLANS
def test_a_secure_sum_is_the_mean_but_for_its_fixed_point(four: Cluster, plan: Plan) -> None:
    config = config_of(Outer.LOCAL_SGD, secure_sum=True)
    models = first_round(config, Clients(config).meet)
    for rank, (parameters, _) in enumerate(four.run(on_ranks, config, plan, H)):
        assert ROUNDED / 100 < far_apart(parameters, models[rank // 2]) < ROUNDED + CLOSE


def test_a_part_of_private_islands_may_be_summed_in_secret(four: Cluster) -> None:
    config = private(secure_sum=True, taking_part=0.5)
    found = four.run(on_private_ranks, replace(config, stop_after=H), Plan(DataParallelism.FSDP))
    models = first_round(config, Private(config, found[0][1]).meet)
    for rank, (parameters, _, _) in enumerate(found):
        assert far_apart(parameters, models[rank // 2]) < 2 * ROUNDED + CLOSE  # divided by 0.5 of 2


def test_controls_of_scaffold_may_be_summed_in_secret(four: Cluster) -> None:
    """In the second round controls are in each gradient; rounding has become a little larger by then."""
    config = config_of(Outer.SCAFFOLD, 4, taking_part=0.5)
    plain, secret = (four.run(on_ranks, replace(config, secure_sum=each), stop=2 * H) for each in (False, True))
    assert 0 < far_apart(plain[0][0], secret[0][0]) < 1e-7


@pytest.mark.parametrize("then", [Plan(DataParallelism.FSDP), Plan(tensor_parallel=2)], ids=["as before", "otherwise"])
def test_a_private_run_resumes_with_the_noise_that_it_would_have_had(
    four: Cluster, tmp_path: Path, then: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, plan, whole, half = private(Outer.DILOCO), Plan(DataParallelism.FSDP), Path("whole"), Path("half")
    expected = four.run(sitting, config, str(whole), False, plan)
    shutil.copytree(whole, half)
    *_, last = sorted(checkpoints(half))
    shutil.rmtree(last)
    found = four.run(sitting, config, str(half), True, then)
    for mine, its in zip(found, expected, strict=True):
        assert far_apart(mine, its) < (1e-15 if then == plan else CLOSE)
    with pytest.raises(RankError, match=r"noise 0[.]02, and this has clipped to 0[.]35"):
        four.run(sitting, replace(config, noise_multiplier=1.0), str(half), True, plan)
    with pytest.raises(RankError, match=r"privacy of islands clipped to .* with noise .*, and this has none"):
        four.run(sitting, replace(config, clip_change=None, noise_multiplier=None), str(half), True, plan)


def told_when_resumed(config: TrainConfig, folder: str) -> list[str]:
    for stop, resume in ((H + 1, False), (STEPS, True)):
        saves = Saves(Path(folder), every=STEPS, resume=resume)
        training = train(replace(config, stop_after=stop), dist.group.WORLD, torch.device("cpu"), saves=saves)
    return training.told()


def test_rounds_before_a_checkpoint_are_spent(four: Cluster, tmp_path: Path) -> None:
    (line,) = four.run(told_when_resumed, private(), str(tmp_path / "run"))[0]
    assert "after 3 rounds" in line


def test_what_makes_no_sense_is_refused() -> None:
    median, krum = {"aggregation": Aggregation.MEDIAN}, {"aggregation": Aggregation.KRUM}
    for options, reason in (
        ({"liars": 1}, "--liars takes --aggregation median, trimmed-mean or krum"),
        ({**median, "liars": -1}, "0 islands lie, or more, not -1"),
        ({"noise_multiplier": 1.0}, "say --clip-change, too"),
        ({"clip_change": 0.0}, "clipped to a norm above 0, and finite, not to 0.0"),
        ({"clip_change": 1.0, "noise_multiplier": -1.0}, "0 or more, and finite, not -1.0"),
        ({"lying_islands": "4:large"}, "island 4 cannot lie: islands are 0 to 3"),
        ({"lying_islands": "3:small"}, "numbers of islands and sign-flip or large, such as 1,3:sign-flip, not 3:small"),
        ({"lying_islands": "large"}, "numbers of islands"),
        ({**median, "secure_sum": True}, "a secure sum shows none"),
        ({**krum, "clip_change": 1.0}, "stands out in krum"),
        ({"secure_sum": True, "wire": Wire.INT8}, "leave out --wire"),
        ({"clip_change": 1.0, "synchronous_steps": 2}, "leave out --synchronous-steps"),
        ({"outer": Outer.STREAMING, "secure_sum": True}, "--secure-sum is of --outer local-sgd, .*, not of streaming"),
        ({"outer": Outer.NOLOCO, **median}, "--aggregation is of --outer local-sgd, .*, not of noloco"),
        ({"outer": Outer.SPARTA, "clip_change": 1.0}, "--clip-change is of --outer .*, not of sparta"),
        ({"outer": Outer.ASYNC_DILOCO, "lying_islands": "1:large"}, "--lying-islands is of .*, not of async-diloco"),
        ({"outer": Outer.SCAFFOLD, "clip_change": 1.0}, "--clip-change is of .*, not of scaffold"),
        (
            {"outer": Outer.NONE, "islands": 1, "inner_steps": None, "secure_sum": True},
            "--secure-sum is of .*, not of none",
        ),
    ):
        with pytest.raises(BadInput, match=reason):
            config_of(**({"outer": Outer.DILOCO, "islands": 4} | options))


def test_too_many_liars_and_too_many_islands_are_refused_before_a_rank_starts() -> None:
    for islands, options, reason in (
        (4, {"aggregation": Aggregation.KRUM}, "1 liar among 4 islands: krum needs 5 islands or more"),
        (4, {"aggregation": Aggregation.MEDIAN, "liars": 2}, "median needs 5 islands"),
        (
            4,
            {"aggregation": Aggregation.TRIMMED_MEAN, "taking_part": 0.5},
            "1 liar among 2 islands: trimmed-mean needs 3 islands",
        ),
        (128, {"secure_sum": True}, "do not hold sums of 128 clients"),
    ):
        with pytest.raises(BadInput, match=reason):
            require_fit(config_of(Outer.DILOCO, islands, **options), Plan(), islands)


def test_islands_that_come_and_go_take_the_plain_mean() -> None:
    for options in ({"secure_sum": True}, {"clip_change": 1.0}, {"aggregation": Aggregation.MEDIAN, "liars": 0}):
        with pytest.raises(BadInput, match="islands that come and go take the plain mean"):
            require_can(config_of(Outer.DILOCO, 2, **options))

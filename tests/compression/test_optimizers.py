"""Optimizers whose momentum travels in 1 bit: n ranks equal one process; what has no gradient stays where it is."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.compression import plain_memory
from reference.compression.cosines import PIECE, DeMo, cosines
from reference.compression.memory import Known
from reference.compression.one_bit_adam import Momenta, MomentumSum, OneBitAdam, OneBitLamb, ZeroOneAdam
from reference.compression.signs import chunk_length
from reference.data_parallel.gradient_sync import ParameterShard
from reference.errors import BadInput
from reference.oracle import relative_difference

from .sums import SHAPES, gradient

STEPS, EXACT = 14, 1e-10
OPTIONS = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}
MAKERS: dict[str, Callable[..., OneBitAdam]] = {
    "1-bit Adam": partial(OneBitAdam, freeze_after=4),
    "0/1 Adam": partial(ZeroOneAdam, kappa=3),
    "1-bit LAMB": partial(OneBitLamb, freeze_after=4),
}
Parameters = dict[str, Tensor]


def masked(name: str, rank: int, step: int) -> Tensor:
    """A gradient of which the first elements are never other than zero."""
    found = gradient(name, rank, step)
    found.view(-1)[:2] = 0
    return found


def first_values() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(gradient(name, 99, 0) / 64) for name in SHAPES}


def on_ranks(name: str) -> tuple[Parameters, list[int]]:
    """Parameters after some steps; and the formulas of an exact and of a 1-bit step, on this rank."""
    parameters, momenta, group = first_values(), Momenta(), dist.group.WORLD
    compressor = MomentumSum(over(group), momenta)
    call = [Known(each, p.shape, p.dtype, p.device) for each, p in parameters.items()]
    compressor.begin([call])
    optimizer = MAKERS[name](parameters.values(), **OPTIONS)
    parts = [ParameterShard(each, p.shape, 0, p.numel(), p) for each, p in parameters.items()]
    momenta.attach(parts, optimizer)
    formulas = []
    for step in range(STEPS):
        gradients = [masked(each, group.rank(), step) for each in parameters]
        formula = compressor.sent_exactly if optimizer.is_exact(step) else compressor.sent
        formulas.append(formula(group.rank(), group.size(), 8))
        compressor.sum(0, gradients)
        for parameter, found in zip(parameters.values(), gradients, strict=True):
            parameter.grad = found
        optimizer.step()
    return {each: p.detach() for each, p in parameters.items()}, formulas


class LambFactors:
    """What 1-bit LAMB multiplies the steps of one parameter by, line by line."""

    def __init__(self) -> None:
        self.average, self.fresh, self.last = None, None, 1.0

    def __call__(self, x: Tensor, update: Tensor, before: Tensor, m: Tensor, v: Tensor, exact: bool) -> float:
        if exact:
            now = float((x.norm() / update.norm()).clamp(0.01, 10))
            self.average = now if self.average is None else 0.9 * self.average + 0.1 * now
            self.fresh = v
            return now
        self.fresh = 0.95 * self.fresh + 0.05 * ((m - 0.9 * before) / 0.1).square()
        change = float(((v.sqrt() + 1e-8) / (self.fresh.sqrt() + 1e-8))[v > 0].max().clamp(0.5, 4))
        self.last = min(max(change, 0.9 * self.last), 1.1 * self.last)
        return self.average * self.last


def always_one() -> Callable[..., float]:
    return lambda *_: 1.0


def in_one_process(n: int, is_exact: Callable[[int], bool], factors: Callable[[], Callable[..., float]]) -> Parameters:
    """The papers' algorithm, line by line: 1-bit Adam, the variance of 0/1 Adam, and with factors 1-bit LAMB."""
    found = {}
    for name, parameter in first_values().items():
        x = parameter.detach().flatten()
        m, v, learned = torch.zeros_like(x), torch.zeros_like(x), 0
        factor = factors()
        length = chunk_length(x.numel(), n)
        residuals = [torch.zeros_like(x) for _ in range(n)]
        servers = [torch.zeros_like(x)[i * length : (i + 1) * length] for i in range(n)]
        for step in range(STEPS):
            gradients, before = [masked(name, rank, step).flatten() for rank in range(n)], m
            if is_exact(step):
                whole = torch.stack(gradients).sum(0)
                m, v, learned = 0.9 * m + 0.1 * whole, 0.95 * v + 0.05 * whole.square(), learned + 1
            else:
                brought = [0.9 * m / n + 0.1 * each for each in gradients]
                m = plain_memory.two_stages(brought, residuals, servers, length)
                for each in (m, *residuals):
                    each[v == 0] = 0
                for each, zero in zip(servers, (v == 0).split(length), strict=False):
                    each[zero] = 0
            root = (v / (1 - 0.95**learned)).sqrt() + 1e-8
            update = m / (1 - 0.9 ** (step + 1)) / root + 0.1 * x
            x = x - 0.01 * factor(x, update, before, m, v, is_exact(step)) * update
        found[name] = x.view(SHAPES[name])
    return found


@pytest.mark.parametrize("name", MAKERS)
def test_four_ranks_equal_one_process_in_both_phases(clusters: Callable[..., Cluster], name: str) -> None:
    found, trace = clusters(4).trace(on_ranks, name)
    exact = MAKERS[name](first_values().values(), **OPTIONS).is_exact
    factors = LambFactors if name == "1-bit LAMB" else always_one
    for each, wanted in in_one_process(4, exact, factors).items():
        assert relative_difference(found[0][0][each], wanted) < EXACT, each
        assert all(torch.equal(found[0][0][each], other[each]) for other, _ in found)
    assert trace.bytes_sent == [sum(formulas) for _, formulas in found]
    exact_bytes, one_bit = found[0][1][0], min(found[0][1])
    assert exact_bytes > 10 * one_bit, "a step that says it sends bits sends 32 or 64"


def test_exact_steps_are_those_of_adamw() -> None:
    ours, theirs = first_values(), first_values()
    pairs = (OneBitAdam(ours.values(), **OPTIONS), torch.optim.AdamW(theirs.values(), **OPTIONS))
    for step in range(5):
        for name in SHAPES:
            ours[name].grad, theirs[name].grad = gradient(name, 0, step), gradient(name, 0, step)
        for optimizer in pairs:
            optimizer.step()
    assert all(relative_difference(ours[name].detach(), theirs[name].detach()) < EXACT for name in SHAPES)


def test_a_step_asks_a_closure_for_gradients() -> None:
    x = nn.Parameter(torch.ones(3))
    optimizer = OneBitAdam([x], lr=0.1, weight_decay=0.0)

    def loss() -> Tensor:
        optimizer.zero_grad()
        x.square().sum().backward()
        return x.detach().sum()

    assert optimizer.step(loss) == 3
    assert x.detach() == pytest.approx(torch.full((3,), 0.9))


def test_what_would_never_end_or_begin_is_refused() -> None:
    for make, said in (
        (partial(OneBitAdam, freeze_after=0), "in 1 step or more, not in 0"),
        (partial(OneBitLamb, freeze_after=0), "in 1 step or more, not in 0"),
        (partial(ZeroOneAdam, kappa=0), "at one distance, not 0"),
    ):
        with pytest.raises(BadInput, match=said):
            make(first_values().values(), lr=0.1)
    for kept in (0, PIECE + 1):
        with pytest.raises(BadInput, match=f"1 to 64 coefficients of a piece, not {kept}"):
            DeMo(None, kept=kept)


def test_lamb_goes_on_with_the_factors_that_it_had(clusters: Callable[..., Cluster]) -> None:
    """Ranks stay equal, elements without gradient only decay, and 1-bit steps are about as long as exact ones."""
    found = clusters(4).run(on_ranks, "1-bit LAMB")
    first = first_values()
    for name, x in found[0][0].items():
        assert all(torch.equal(x, other[name]) for other, _ in found)
        before = first[name].detach().flatten()
        assert x.isfinite().all()
        assert (x.flatten()[:2].abs() <= before[:2].abs()).all()
        assert 0.01 < float((x.flatten() - before).norm() / before.norm()) < 1


def test_distances_of_exact_steps_double() -> None:
    is_exact = ZeroOneAdam(first_values().values(), lr=1.0, kappa=3).is_exact
    assert [step for step in range(21) if is_exact(step)] == [0, 1, 2, 3, 5, 7, 9, 13, 17]


def test_cosines_are_orthonormal_and_demo_is_its_definition(clusters: Callable[..., Cluster]) -> None:
    c = cosines(PIECE, torch.float64, torch.device("cpu"))
    assert relative_difference(c @ c.T, torch.eye(PIECE, dtype=torch.float64)) < EXACT

    def on_rank() -> tuple[list[Tensor], int]:
        group = dist.group.WORLD
        demo, signs = DeMo(over(group), kept=3), []
        demo.begin([[Known("wide", torch.Size([5, 40]), torch.float64, torch.device("cpu"))]])
        for step in range(10):
            signs.append(gradient("wide", group.rank(), step))
            demo.sum(0, [signs[-1]])
        return signs, 10 * demo.sent(group.rank(), group.size(), 8)

    found, trace = clusters(4).trace(on_rank)
    assert trace.bytes_sent == [formula for _, formula in found]
    momenta = torch.zeros(4, 4 * PIECE, dtype=torch.float64)
    for step in range(10):
        whole = torch.zeros(4, PIECE, dtype=torch.float64)
        for rank in range(4):
            momenta[rank, :200] = 0.9 * momenta[rank, :200] + gradient("wide", rank, step).flatten()
            said = momenta[rank].view(4, PIECE) @ c.T
            few = torch.stack([plain_memory.top_k(piece, 3) for piece in said]).float().double()
            whole += few
            momenta[rank] -= (few @ c).flatten()
            momenta[rank, 200:] = 0
        wanted = (whole @ c).flatten()[:200].sign().view(5, 40)
        assert all(torch.equal(signs[step], wanted) for signs, _ in found)

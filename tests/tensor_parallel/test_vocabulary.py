"""The loss of logits in parts is torch's of whole logits, and no rank ever has them whole."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.memory.lab.gauge import Gauge
from reference.models import GPTConfig, token_loss
from reference.sequence_parallel import SequenceRegion
from reference.tensor_parallel import Region, vocabulary

from ..data_parallel.conftest import in_group, members
from .split import split_gpt

EXACT = 1e-12  # float64: sums of a few hundred numbers in another order
RANKS = (1, 2, 3, 4, 8)
TOKENS = 12


@dataclass(frozen=True)
class Loss:
    """Random logits and targets, and how their loss is asked for."""

    size: int = 10  # V
    smoothing: float = 0.0
    ignored: int = vocabulary.IGNORED
    scale: float = 1.0  # of the logits
    shift: float = 0.0
    padding: float = math.nan  # what stands after the last token: no code may read it

    def logits(self) -> Tensor:
        """[N, V] in float64."""
        generator = torch.Generator().manual_seed(3)
        return torch.randn(TOKENS, self.size, generator=generator, dtype=torch.float64) * self.scale + self.shift

    def targets(self) -> Tensor:
        """[N]: every third does not count, and all that do count are there."""
        targets = torch.arange(TOKENS) * 7 % self.size
        targets[::3] = self.ignored
        return targets

    def part(self, group: ProcessGroup) -> Tensor:
        """A rank's logits: [N, V' / t], padded to the same size on every rank."""
        share = -(-self.size // group.size())
        padded = F.pad(self.logits(), (0, share * group.size() - self.size), value=self.padding)
        return padded[:, group.rank() * share :][:, :share].clone()

    def whole(self) -> tuple[Tensor, Tensor]:
        """What torch says: the loss of each token, and the gradient of whole logits."""
        logits = self.logits().requires_grad_()
        options = {"ignore_index": self.ignored, "label_smoothing": self.smoothing, "reduction": "none"}
        losses = F.cross_entropy(logits, self.targets(), **options)
        losses.backward(upstream())
        return losses.detach(), logits.grad


def upstream() -> Tensor:
    """A gradient for each token, no two alike."""
    return torch.linspace(-1, 2, TOKENS, dtype=torch.float64)


def losses(group: ProcessGroup, cases: list[Loss]) -> list[tuple[Tensor, Tensor]]:
    """Of each case the loss of each token, and the gradient of this rank's logits."""
    found = []
    for case in cases:
        logits = case.part(group).requires_grad_()
        loss = vocabulary.cross_entropy(logits, case.targets(), group, case.size, case.smoothing, case.ignored)
        loss.backward(upstream())
        found.append((loss.detach(), logits.grad))
    return found


CASES = [
    Loss(),
    Loss(smoothing=0.1),
    Loss(smoothing=1.0),
    Loss(ignored=4),  # a token like others, that does not count
    Loss(size=13, smoothing=0.3, padding=-1e30),
    Loss(size=3, smoothing=0.2),  # of 4 and 8 ranks some have padding alone
    Loss(size=1),
    Loss(scale=1e4),  # the exponential of which no number can hold
    Loss(shift=-1e4),
    Loss(shift=1e4, smoothing=0.1),
]


@pytest.mark.parametrize("t", RANKS)
def test_losses_and_gradients_are_those_of_whole_logits(ranks: Cluster, t: int) -> None:
    """On every rank the same losses, to the last bit; of the logits, gradients side by side, and none of padding."""
    results = ranks.run(in_group, t, losses, CASES)
    for case, *found in zip(CASES, *(results[rank] for rank in members(t)), strict=True):
        expected, gradient = case.whole()
        assert all(torch.equal(loss, found[0][0]) for loss, _ in found), case
        assert (found[0][0] - expected).abs().max() <= EXACT * max(1, expected.abs().max()), case
        together = torch.cat([part for _, part in found], dim=-1)
        assert (together[:, : case.size] - gradient).abs().max() <= EXACT, case
        assert not together[:, case.size :].any(), case
        assert (found[0][0][::3] == 0).all() and not together[::3].any(), case


def padded_without_a_word(group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Logits that divide need no number of tokens."""
    case = Loss(size=12)
    named, unnamed = (vocabulary.cross_entropy(case.part(group), case.targets(), group, size) for size in (12, None))
    return named, unnamed


def test_without_padding_the_size_of_the_vocabulary_is_known(ranks: Cluster) -> None:
    results = ranks.run(in_group, 4, padded_without_a_word)
    assert all(torch.equal(*results[rank]) for rank in members(4))


def infinite(group: ProcessGroup) -> list[float]:
    """How far losses are from torch's: a token is forbidden, one logit is NaN, and all are where no target counts."""
    logits = Loss(size=8).logits()
    logits[:, 2] = -math.inf
    logits[1, 5] = math.nan
    logits[4] = math.nan
    targets = torch.full((TOKENS,), 3)
    targets[4] = vocabulary.IGNORED
    own = logits.chunk(group.size(), dim=-1)[group.rank()]
    ours = vocabulary.cross_entropy(own.contiguous(), targets, group)
    return (ours - F.cross_entropy(logits, targets, reduction="none")).tolist()


@pytest.mark.parametrize("t", [1, 2, 8])
def test_a_forbidden_token_costs_nothing_and_a_nan_stays_with_its_token(ranks: Cluster, t: int) -> None:
    """Of eight ranks, one has the forbidden token alone."""
    results = ranks.run(in_group, t, infinite)
    for off in (results[rank] for rank in members(t)):
        assert math.isnan(off[1])
        assert max(map(abs, off[:1] + off[2:])) < EXACT


HUGE = 60.0  # bf16 has steps of a quarter there


def mean_losses(group: ProcessGroup, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """`token_loss` of logits [2, 6, V] in `dtype`, its gradient's part, and that of one process for this part."""
    whole = Loss(size=16, scale=HUGE).logits().view(2, 6, 16).to(dtype)
    targets = Loss(size=16, ignored=0).targets().view(2, 6)
    part = whole.chunk(group.size(), dim=-1)[group.rank()].clone().requires_grad_()
    loss = vocabulary.token_loss(part, targets, 100, group)
    loss.backward()
    whole.requires_grad_()
    expected = token_loss(whole, targets, 100)
    expected.backward()
    theirs = whole.grad.chunk(group.size(), dim=-1)[group.rank()]
    assert loss.dtype == expected.dtype and part.grad.dtype == dtype
    return loss.detach() - expected.detach(), part.grad - theirs, expected.detach()


@pytest.mark.parametrize(
    ("dtype", "step"), [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float32, 2.0**-23)]
)
def test_the_loss_of_a_model_is_computed_in_float32(ranks: Cluster, dtype: torch.dtype, step: float) -> None:
    """And then differs from torch's by a rounding of float32; gradients by one of their own dtype, of 1/100 at most."""
    results = ranks.run(in_group, 4, mean_losses, dtype)
    for loss, gradient, expected in (results[rank] for rank in members(4)):
        assert abs(float(loss)) <= 4 * 2**-23 * float(expected)
        assert float(gradient.abs().max()) <= step / 100


LARGE = 1 << 15  # tokens of a vocabulary: 12 MB of float32 logits for 96 tokens


def peak_of_the_end(group: ProcessGroup, region: type[Region]) -> tuple[int, int]:
    """The most bytes that a rank has at once from the head to the loss and back; bytes of its own logits."""
    tokens, width = 96, 8
    torch.manual_seed(0)
    region = region(group)
    table = torch.randn(LARGE // group.size(), width, requires_grad=True)
    x = region.local_tokens(torch.randn(1, tokens, width)).clone().requires_grad_()
    with Gauge({}) as gauge:
        (logits,) = region.column_linear(x, table)
        vocabulary.token_loss(logits, torch.zeros(1, tokens, dtype=torch.int64), tokens, group).backward()
    return int(gauge.history.usage.sum(axis=1).max()), logits.nbytes


@pytest.mark.parametrize("region", [Region, SequenceRegion])
def test_no_rank_has_whole_logits(ranks: Cluster, region: type[Region]) -> None:
    """Each of eight has its eighth three times, in backward: of logits, probabilities and the gradient."""
    results = ranks.run(in_group, 8, peak_of_the_end, region)
    for peak, own in (results[rank] for rank in members(8)):
        assert own == 4 * 96 * LARGE // 8
        assert 3 * own < peak < 3.2 * own


def looked_up(group: ProcessGroup, region: type[Region]) -> tuple[float, float]:
    """How far embeddings, and a table's gradients, are from those of a whole table. 10 tokens, padded."""
    torch.manual_seed(1)
    region, share = region(group), -(-10 // group.size())
    whole = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    padded = F.pad(whole.detach(), (0, 0, 0, share * group.size() - 10))
    rows = slice(group.rank() * share, (group.rank() + 1) * share)
    own = padded[rows].clone().requires_grad_()
    tokens = torch.randint(10, (2, 8))
    weight = torch.randn(2, 8, 6, dtype=torch.float64)
    found = vocabulary.embedding(tokens, own, region)
    (found * region.local_tokens(weight)).sum().backward()
    expected = F.embedding(tokens, whole)
    (expected * weight).sum().backward()
    gradient = F.pad(whole.grad, (0, 0, 0, share * group.size() - 10))[rows]
    return float((found - region.local_tokens(expected)).abs().max()), float((own.grad - gradient).abs().max())


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize("region", [Region, SequenceRegion])
def test_an_embedding_is_that_of_the_whole_table(ranks: Cluster, region: type[Region], t: int) -> None:
    results = ranks.run(in_group, t, looked_up, region)
    for embedding, gradient in (results[rank] for rank in members(t)):
        assert embedding == 0.0  # one rank gives the row, all others zeros
        assert gradient < EXACT


def refused(group: ProcessGroup) -> list[str]:
    """What is said of targets and tokens that a vocabulary of 8, or of 7 and a row of padding, does not have."""
    region, logits, said = Region(group), torch.zeros(3, 8 // group.size()), []
    table = torch.zeros(8 // group.size(), 3)
    model, _ = split_gpt(GPTConfig(layers=1, width=4, heads=2, kv_heads=2, hidden=4, vocabulary=7), region)
    for look in (
        lambda: vocabulary.cross_entropy(logits, torch.tensor([7, vocabulary.IGNORED, 99]), group),
        lambda: vocabulary.cross_entropy(logits, torch.tensor([0, 7, 1]), group, vocabulary=7, ignored=-1),
        lambda: vocabulary.embedding(torch.tensor([[0, 7, -1]]), table, region),
        lambda: vocabulary.embedding(torch.tensor([[0, 6, 7]]), table, region, vocabulary=7),
        lambda: model(torch.tensor([[0, 6, 7]])),
    ):
        with pytest.raises(BadInput) as error:
            look()
        said.append(str(error.value))
    return said


def test_what_is_no_token_is_refused(ranks: Cluster) -> None:
    """On every rank, also where another one would have its row."""
    results = ranks.run(in_group, 2, refused)
    for rank in members(2):
        assert results[rank] == [
            "target 99 is not a token of 0 to 7, nor the ignored -100",
            "target 7 is not a token of 0 to 6, nor the ignored -1",
            "token -1 is not a token of 0 to 7",
            "token 7 is not a token of 0 to 6",
            "token 7 is not a token of 0 to 6",
        ]


def kept(group: ProcessGroup) -> set[int]:
    """Lengths of what the loss keeps for backward, in elements for each of this rank's logits."""
    sizes = []
    logits = Loss(size=16).part(group).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.nbytes) or x, lambda x: x):
        vocabulary.cross_entropy(logits, Loss(size=16).targets(), group)
    dist.barrier(group)
    return {size // logits.nbytes for size in sizes}


def test_backward_keeps_no_more_than_the_parts_of_the_probabilities(ranks: Cluster) -> None:
    results = ranks.run(in_group, 2, kept)
    assert all(results[rank] == {0, 1} for rank in members(2))

"""One table says what every rank holds: each parameter once, cut where it may be cut, never whole."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.models import GPT, GPTConfig, create, initial_value
from reference.models.config import LAYOUT
from reference.models.layout import split_of
from reference.parallelize import DataParallelism, Plan, parallelize
from reference.sharding import Placement
from reference.tensor_parallel import placements, require_fit, split_parameters

from ..zero.peak import Peak

GROUPED = GPTConfig(layers=2, width=96, heads=24, kv_heads=4, hidden=24, vocabulary=17)
CONFIGS = {
    "grouped queries": GROUPED,
    "a head of keys for each of queries": replace(GROUPED, kv_heads=24),
    "one head of keys": replace(GROUPED, kv_heads=1),
    "tied": replace(GROUPED, tied=True),
    "heads of their own size": replace(GROUPED, head_size=6),
    "biases": replace(GROUPED, biases=("query", "key", "value", "output", "gate", "up", "down")),
    "no gate": replace(GROUPED, gated=False, biases=("up", "down")),
    "the heads of llama3-70b": GPTConfig(layers=1, width=128, heads=64, kv_heads=8, hidden=448, vocabulary=129),
}
RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def on_meta(config: GPTConfig) -> GPT:
    return create(GPT, config, device="meta")


def fitting(config: GPTConfig) -> list[int]:
    """Numbers of ranks that can share such a model, of `RANKS`."""
    heads = config.kv_heads
    return [t for t in RANKS if config.heads % t == 0 and (heads % t == 0 or t % heads == 0)]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_parameter_has_one_row_of_the_table(config: GPTConfig) -> None:
    """By the end of its name: a whole word of it, or what follows the last underscore. A bias: by its weight."""
    names = [name.replace(".bias", ".weight") for name, _ in on_meta(config).named_parameters()]
    rows = {name: [end for end in LAYOUT if f".{name}".replace("_norm", ".norm").endswith(f".{end}")] for name in names}
    assert {name: found for name, found in rows.items() if len(found) != 1} == {}
    unused = set(LAYOUT) - {end for [end] in rows.values()}
    missing = {"head.weight": config.tied, "feed_forward.gate.weight": not config.gated}
    assert unused == {name for name, is_missing in missing.items() if is_missing}
    assert all(split_of(name, LAYOUT) is LAYOUT[rows[name][0]] for name in names)


def test_what_the_table_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"no row of the layout table says how blocks\.0\.attention\.sink is split"):
        split_of("blocks.0.attention.sink", LAYOUT)
    with pytest.raises(KeyError):
        split_of("overhead.weight", LAYOUT)  # ends with the letters of a row, and is another word


def placed_on(config: GPTConfig, t: int) -> dict[str, list[Placement]]:
    """Of every parameter, where it is on each of t ranks."""
    model = on_meta(config)
    by_rank = [placements(model, rank, t) for rank in range(t)]
    return {name: [placed[name] for placed in by_rank] for name in by_rank[0]}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_blocks_of_all_ranks_tile_every_parameter(config: GPTConfig) -> None:
    """Each element is in one block, and equally many ranks have each block."""
    for t in fitting(config):
        for name, placed in placed_on(config, t).items():
            shape = placed[0].shape
            owners = torch.zeros(shape)
            for where in placed:
                where.block.within(owners).add_(1)
            pieces = len({where.block for where in placed})
            assert (owners == t // pieces).all(), (name, t)
            assert len({where.local for where in placed}) == 1, (name, t)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_only_a_vocabulary_is_padded(config: GPTConfig) -> None:
    """By less than a row for each rank."""
    for t in fitting(config):
        for name, placed in placed_on(config, t).items():
            rows = max(where.block.begins[0] + where.block.sizes[0] for where in placed)
            padding = rows - placed[0].shape[0]
            assert 0 <= padding < t if name in ("embedding.weight", "head.weight") else padding == 0, (name, t)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_queries_are_where_their_keys_are(config: GPTConfig) -> None:
    """Rows of whole heads; query head h compares with key-value head h / (H / K), and so does the output's column."""
    d, serves = config.head_dim, config.heads // config.kv_heads
    for t in fitting(config):
        placed = placed_on(config, t)
        blocks = {end: placed[f"blocks.0.attention.{end}.weight"] for end in ("query", "key", "value", "output")}
        for rank in range(t):
            query, key, value, output = (blocks[end][rank].block for end in blocks)
            (row, _), (rows, _) = query.begins, query.sizes
            (of_keys, _), (keys, _) = key.begins, key.sizes
            assert (row, rows) == (output.begins[1], output.sizes[1])
            assert key == value and row % d == rows % d == of_keys % d == keys % d == 0
            needed = {head // serves for head in range(row // d, (row + rows) // d)}
            assert needed == set(range(of_keys // d, (of_keys + keys) // d)), (t, rank)


@pytest.mark.parametrize("t", fitting(GROUPED))
def test_a_block_has_the_values_of_the_whole(t: int) -> None:
    """And zeros where there is padding."""
    for name, placed in placed_on(GROUPED, t).items():
        whole = initial_value(name, placed[0].shape, GROUPED.layers, seed=0)
        again = torch.zeros(whole.shape)
        for where in placed:
            block, known = where.cut(whole), where.block.within(again)
            known[:] = block[: len(known)]
            assert not block[len(known) :].any()
        assert torch.equal(again, whole), name


def test_tied_parameters_stay_one() -> None:
    model = on_meta(CONFIGS["tied"])
    split_parameters(model, placements(model, 1, 4))
    assert model.head.embedding.weight is model.embedding.weight
    assert model.embedding.weight.shape == (5, 96)


def test_frozen_parameters_stay_frozen() -> None:
    model = on_meta(GROUPED)
    model.embedding.weight.requires_grad = False
    split_parameters(model, placements(model, 1, 4))
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["embedding.weight"]


def test_a_head_is_never_cut_through() -> None:
    with pytest.raises(BadInput, match="24 heads do not divide among 16 tensor-parallel ranks"):
        placements(on_meta(GROUPED), rank=0, ranks=16)


FIT = GPTConfig(layers=1, width=48, heads=12, kv_heads=4, hidden=40)


@pytest.mark.parametrize(
    ("config", "asked", "says"),
    [
        (FIT, (8,), "12 heads do not divide among 8 tensor-parallel ranks; 1, 2 or 4 would do"),
        (FIT, (12,), "40 hidden features do not divide among 12 tensor-parallel ranks; 1, 2 or 4 would do"),
        (FIT, (6,), "40 hidden features do not divide among 6 tensor-parallel ranks; 1, 2 or 4 would do"),
        (
            replace(FIT, hidden=48),
            (6,),
            "4 key-value heads do not divide among 6 tensor-parallel ranks; 1, 2, 4 or 12 would do",
        ),
        (FIT, (4, 6), "6 ranks do not divide into groups of 4 tensor-parallel ones; 1 or 2 would do"),
        (FIT, (4, 8, 50), "50 tokens of a window do not divide among 4 tensor-parallel ranks; 1 or 2 would do"),
        (FIT, (0,), "tensor parallelism takes at least 1 rank, not 0"),
        (FIT, (-1,), "tensor parallelism takes at least 1 rank, not -1"),
        (FIT, (4, 4, 7), "7 tokens of a window do not divide among 4 tensor-parallel ranks; 1 would do"),
    ],
)
def test_what_does_not_fit_is_said_with_what_would(config: GPTConfig, asked: tuple, says: str) -> None:
    with pytest.raises(BadInput) as error:
        require_fit(config, *asked)
    assert str(error.value) == says


@pytest.mark.parametrize("t", [1, 2, 4])
def test_what_would_do_does(t: int) -> None:
    """Whatever the vocabulary, since it is padded."""
    require_fit(replace(FIT, vocabulary=1), t, 8, sequence=8)


BUILT = GPTConfig(layers=6, width=32, heads=4, kv_heads=4, hidden=64, vocabulary=64)
LARGEST = 64 * 32  # elements of the largest parameter


def peak_of_building(form: DataParallelism) -> int:
    """Bytes, at most, while a rank of four tensor-parallel ones makes its model."""
    with Peak() as peak:
        plan = Plan(form, tensor_parallel=4)
        parallelize(BUILT, plan, dist.group.WORLD, torch.device("cpu"), PRECISIONS["fp32"])
    return peak.bytes


@pytest.mark.parametrize("form", [DataParallelism.FLAT, DataParallelism.FSDP])
def test_the_model_never_exists_whole(clusters: Callable[..., Cluster], form: DataParallelism) -> None:
    """A rank has its quarter and, while one parameter gets its values, that one twice whole and once in part."""
    whole, share = 4 * BUILT.parameters, 4 * BUILT.parameters // 4
    fsdp_unit = share // 6 if form is DataParallelism.FSDP else 0  # a block's flat tensor
    for peak in clusters(4).run(peak_of_building, form):
        assert share < peak < 1.05 * share + fsdp_unit + 4 * 3 * LARGEST < 0.8 * whole

"""Published layouts, rebuilt: numbers as their papers print them, counts of tensors, and bytes by hand."""

import pytest
import torch

from reference.composition.lab.published_layouts import (
    DEEPSEEK,
    DEEPSEEK_V3,
    GEMMA,
    LAYOUTS,
    LLAMA_8K,
    LLAMA_128K,
    OLMO,
    PublishedLayout,
    held,
    latent_attention_parameters,
    parameters_by_kind,
    said_in_a_step,
)
from reference.models import architecture, create

LLAMA_MODEL = {"layers": 126, "width": 16_384, "hidden": 53_248, "heads": 128, "kv_heads": 8, "vocabulary": 128_256}
"""Llama Team 2024, arXiv:2407.21783, table 3."""
LLAMA_ROWS = (  # its table 4: GPUs, tp, cp, pp, dp, tokens of a window, windows of a replica
    (LLAMA_8K, 16_384, 8, 1, 16, 128, 8192, 16),
    (LLAMA_128K, 16_384, 8, 16, 16, 8, 131_072, 16),
)
DEEPSEEK_ROWS = {"ranks": 2048, "pp": 16, "ep": 64, "nodes": 8, "billions": 671, "active": 37, "windows": 15_360}
"""DeepSeek-AI 2024, arXiv:2412.19437, sections 1, 3.1, 3.2 and 4.2, table 1."""
LINKS = {"H100 NVLink": 450e9, "InfiniBand for each GPU": 50e9, "A100 NVLink": 300e9}
"""Bytes per second and direction: stas00/ml-engineering, compute/accelerator and network/README.md, at 744d01e."""


@pytest.mark.parametrize(("layout", "ranks", "tp", "cp", "pp", "dp", "sequence", "windows"), LLAMA_ROWS)
def test_llama_is_that_of_its_tables(
    layout: PublishedLayout, ranks: int, tp: int, cp: int, pp: int, dp: int, sequence: int, windows: int
) -> None:
    assert {name: getattr(layout.model, name) for name in LLAMA_MODEL} == LLAMA_MODEL
    assert (layout.ranks, layout.size("tp"), layout.size("cp"), layout.size("pp"), layout.size("dp")) == (
        ranks, tp, cp, pp, dp,
    )  # fmt: skip
    assert (layout.sequence, layout.windows, layout.batch_tokens) == (sequence, windows, 2**24)
    assert tuple(layout.axes) == ("dp", "pp", "cp", "tp"), "from the innermost out: tp, cp, pp, dp"
    assert (layout.intra, layout.inter) == (LINKS["H100 NVLink"], LINKS["InfiniBand for each GPU"])


def test_deepseek_is_that_of_its_report() -> None:
    assert DEEPSEEK.ranks == DEEPSEEK_ROWS["ranks"]
    assert (DEEPSEEK.size("pp"), DEEPSEEK.size("ep"), DEEPSEEK.size("tp")) == (16, 64, 1)
    ranks = DEEPSEEK.mesh.group_of(0, "ep")
    assert len({rank // DEEPSEEK.node for rank in ranks}) == DEEPSEEK_ROWS["nodes"]
    assert DEEPSEEK.windows * 128 == DEEPSEEK_ROWS["windows"]
    model = DEEPSEEK_V3
    assert (model.layers, model.dense_layers, model.width, model.hidden) == (61, 3, 7168, 18_432)
    assert (model.experts, model.top_k, model.top_groups, model.shared_experts) == (256, 8, 4, 1)
    assert (model.expert_hidden, model.vocabulary) == (2048, 129_280)


def test_deepseek_s_parameters_are_counted_from_tensors() -> None:
    model = create(architecture, DEEPSEEK_V3, device="meta")
    kinds = parameters_by_kind(DEEPSEEK_V3)
    assert sum(kinds.values()) == DEEPSEEK_V3.parameters == sum(p.numel() for p in model.parameters())
    assert all(parameter.is_meta for parameter in model.parameters())
    assert kinds["experts"] == 58 * 256 * DEEPSEEK_V3.expert_parameters == 653_908_770_816
    assert kinds["shared experts"] == 58 * 3 * 7168 * 2048
    assert kinds["routers"] == 58 * 256 * 7168
    assert kinds["feed-forwards"] == 3 * 3 * 7168 * 18_432
    assert kinds["tables"] == 2 * 129_280 * 7168


def test_with_its_own_attention_they_are_671_billion_of_which_a_token_meets_37() -> None:
    """The published tensors have 671,026,419,200 numbers: these, and a bias for each of 58 x 256 experts."""
    kinds = parameters_by_kind(DEEPSEEK_V3)
    own = sum(kinds.values()) - kinds["attention"] + 61 * latent_attention_parameters()
    assert own + 58 * 256 == 671_026_419_200
    assert round(own / 1e9) == DEEPSEEK_ROWS["billions"]
    active = own - 58 * (256 - 8) * DEEPSEEK_V3.expert_parameters
    assert int(active / 1e9) == DEEPSEEK_ROWS["active"]


def test_bytes_of_experts_by_hand() -> None:
    """A row leaves as 7168 bytes and comes back as 14,336, in forward and in backward, to at most four nodes."""
    between, within = (row for row in said_in_a_step(DEEPSEEK) if row.axes == "ep" and "rows" in row.what)
    if between.leaving == 0:
        between, within = within, between
    tokens, layers = 120 * 4096, 58 / 16
    assert between.bytes == between.leaving == 4 * 2 * (7168 + 14_336) * tokens * layers
    assert within.bytes == 2 * between.bytes and within.leaving == 0
    assert between.seconds == between.bytes / 50e9


def test_bytes_of_llama_by_hand() -> None:
    said = {row.axes: row for row in said_in_a_step(LLAMA_128K)}
    tokens, layers = 16 * 131_072 // 16, 126 / 16
    assert said["tp"].bytes == 2 * 8 * 7 / 8 * tokens * 16_384 * layers
    assert said["tp"].leaving == 0 and said["tp"].seconds == said["tp"].bytes / 450e9
    assert said["cp"].bytes == 8 * 15 * 2 * tokens * 1 * 128 * layers, "one key-value head on each of tp's ranks"
    assert said["pp"].bytes == 2 * 2 * tokens * 16_384 / 8
    assert all(said[axes].leaving == said[axes].bytes for axes in ("cp", "pp", "dp x cp")), "one rank on a node"


def test_what_a_rank_of_llama_holds_is_its_share_but_for_norms() -> None:
    dense, experts = held(LLAMA_8K)
    norms = (2 * 126 + 1) * 16_384
    assert dense == ((LLAMA_8K.model.parameters - norms) / 8 + norms) / 16
    assert experts == 0


def test_a_ring_over_whole_nodes_leaves_each_node_once() -> None:
    (row,) = said_in_a_step(OLMO)
    assert OLMO.ranks == 27 * 8 and row.leaving == row.bytes / 8
    assert row.bytes == 8 * OLMO.model.parameters * 215 / 216
    assert OLMO.windows * OLMO.sequence == 4096
    assert OLMO.intra == LINKS["A100 NVLink"]


def test_gemma_is_that_of_its_tables() -> None:
    """Embedding 1,180,237,824 and others 26,047,480,320; it has two norms more in each of its 46 layers."""
    assert GEMMA.ranks == 6144
    assert GEMMA.model.parameters + 2 * 46 * 4608 == 1_180_237_824 + 26_047_480_320


@pytest.mark.parametrize("layout", [*LAYOUTS, GEMMA], ids=lambda layout: layout.name)
def test_each_says_where_it_is_from_and_what_it_leaves_out(layout: PublishedLayout) -> None:
    assert "arXiv:" in layout.source and layout.silent
    assert torch.Size(layout.axes.values()).numel() == layout.ranks

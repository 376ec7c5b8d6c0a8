"""What is drawn of a split is what the ranks hold, and what they make of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from reference.errors import BadInput
from reference.models import PRESETS, GPTConfig
from reference.tensor_parallel.layout import placement
from visualizations import matrices, splits, summa
from visualizations.matrices import Cut, Matrix, input_of, linear, numbers_on, parameters, weight

from .reading import assert_readable, drawn

CONFIG = GPTConfig(layers=3, width=32, heads=8, kv_heads=2, hidden=48, vocabulary=50)
WEIGHTS = [name for name in parameters(CONFIG) if "norm" not in name]
TOKENS = 6


def of_rank(matrix: Matrix, numbers: np.ndarray, rank: int) -> np.ndarray:
    """What a rank has of a matrix that is not a sum."""
    if matrix.cut is Cut.NOWHERE:
        return numbers
    [stripe] = [stripe for stripe in matrix.stripes if rank in stripe.ranks]
    inside = slice(stripe.begin, stripe.end)
    return numbers[inside] if matrix.cut is Cut.ROWS else numbers[:, inside]


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("t", [2, 4, 8])
def test_ranks_make_of_their_parts_what_is_drawn(name: str, t: int) -> None:
    """Each product, with numbers: a rank's part of it, or a summand of it."""
    w = weight(name, CONFIG, t, "W")
    random = np.random.default_rng(0)
    for product in linear(input_of(w, TOKENS, "X"), w, "Y"):
        left, right = (random.integers(-9, 9, (m.rows, m.columns)) for m in (product.left, product.right))
        made = [of_rank(product.left, left, rank) @ of_rank(product.right, right, rank) for rank in range(t)]
        assert (product.made.rows, product.made.columns) == (left @ right).shape
        if product.made.cut is Cut.SUM:
            firsts = [stripe.ranks[0] for stripe in product.made.stripes]
            assert (sum(made[rank] for rank in firsts) == left @ right).all()
        else:
            assert all((of_rank(product.made, left @ right, rank) == made[rank]).all() for rank in range(t))


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("feed_forward.up.weight", ["dX"]),
        ("attention.query.weight", ["dX"]),
        ("feed_forward.down.weight", ["Y"]),
        ("attention.output.weight", ["Y"]),
        ("head.weight", ["dX"]),
        ("embedding.weight", ["Y"]),
    ],
)
def test_columns_sum_what_goes_back_and_rows_what_comes_out(name: str, sums: list[str]) -> None:
    w = weight(name, CONFIG, 4, "W")
    made = [product.made for product in linear(input_of(w, TOKENS, "X"), w, "Y")]
    assert [matrix.name for matrix in made if matrix.cut is Cut.SUM] == sums
    title = " ".join(splits.draw_product(name, CONFIG, 4, TOKENS).get_suptitle().split())
    assert title.endswith(f", only {sums[0]} must be summed over the ranks")


def test_ranks_cannot_multiply_what_they_lack() -> None:
    x = Matrix("X", 4, 48, Cut.NOWHERE, ())
    with pytest.raises(BadInput, match="some of its rows of W"):
        x.times(weight("feed_forward.down.weight", CONFIG, 4, "W"), "Y")
    with pytest.raises(BadInput, match="Y has 8 columns, B has 32 rows"):
        splits.draw_pair("attention.key.weight", "attention.output.weight", CONFIG, 4, TOKENS)


@pytest.mark.parametrize("name", list(parameters(CONFIG)))
@pytest.mark.parametrize("t", [2, 4, 8])
def test_a_rank_holds_what_the_layout_table_says(name: str, t: int) -> None:
    """But for rows of padding, which are not drawn."""
    shape, matrix = parameters(CONFIG)[name], weight(name, CONFIG, t)
    for rank in range(t):
        block = placement(name, shape, CONFIG, rank, t).block
        assert numbers_on(matrix, rank) == block.within(torch.empty(shape)).numel()


def test_neighbours_share_a_stripe_where_there_are_too_few_heads() -> None:
    stripes = weight("attention.key.weight", CONFIG, 8).stripes
    assert [stripe.ranks for stripe in stripes] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_stripe_is_as_wide_as_its_part() -> None:
    """The last ranks have fewer tokens of a vocabulary that does not divide."""
    picture = splits.draw_product("head.weight", replace(CONFIG, vocabulary=190), 4, 100)
    stripes = picture.axes[0].patches[1:5]  # X comes first
    widths = [stripe.get_width() for stripe in stripes]
    assert widths == pytest.approx([widths[0]] * 3 + [widths[0] * 46 / 48])


def test_a_sum_is_a_sheet_for_each_rank_and_then_the_whole() -> None:
    [_, of_x, _] = linear(
        input_of(weight("head.weight", CONFIG, 4), TOKENS, "X"), weight("head.weight", CONFIG, 4), "Y"
    )
    assert [(m.name, m.cut) for m, _ in splits._parts(of_x)][2:] == [("dX", Cut.SUM), ("dX", Cut.NOWHERE)]
    faces = [patch.get_facecolor() for patch in splits.draw_product("head.weight", CONFIG, 4, TOKENS).axes[0].patches]
    assert faces.count(faces[0]) == 4  # grey: X, dX when it is added up, X transposed, and the legend


@pytest.mark.parametrize("model", ["tiny", "small", "llama3-8b", "llama3-70b"])
@pytest.mark.parametrize("t", [2, 4, 8, 16])
def test_a_layer_can_be_read(monkeypatch: pytest.MonkeyPatch, model: str, t: int) -> None:
    if t > PRESETS[model].heads:
        with pytest.raises(BadInput):
            splits.draw_layer(PRESETS[model], t)
        return
    picture = splits.draw_layer(PRESETS[model], t)
    assert_readable(picture, monkeypatch)
    names = {words for words, _, _ in drawn(picture, monkeypatch)}
    assert {"norm", "query", "key", "value", "output", "gate", "up", "down"} <= names


@pytest.mark.parametrize("t", [2, 4, 8])
def test_products_can_be_read(monkeypatch: pytest.MonkeyPatch, t: int) -> None:
    config = GPTConfig(1, 256, 8, 8, 704, vocabulary=1000)
    for name in ("feed_forward.up.weight", "feed_forward.down.weight", "head.weight", "embedding.weight"):
        assert_readable(splits.draw_product(name, config, t, 512), monkeypatch)
    for half in (("feed_forward.up", "feed_forward.down"), ("attention.query", "attention.output")):
        picture = splits.draw_pair(*(f"{name}.weight" for name in half), config, t, 512)
        assert_readable(picture, monkeypatch)
        assert picture.get_suptitle().endswith("Z and dX must be summed over the ranks")


@pytest.mark.parametrize("mesh", [(2, 2), (2, 3), (4, 4)])
def test_a_mesh_can_be_read(monkeypatch: pytest.MonkeyPatch, mesh: tuple[int, int]) -> None:
    assert_readable(summa.draw(mesh, 768, 768, 768), monkeypatch)


def test_panels_are_sent_by_those_who_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn by turn, by the ranks of a column of the mesh along its rows, and by a row along its columns."""
    texts = [words for words, _, _ in drawn(summa.draw((2, 3), 768, 768, 768), monkeypatch) if words.isdigit()]
    turns = [texts[11 * turn : 11 * turn + 5] for turn in range(6)]
    assert ["".join(turn[:2]) for turn in turns] == ["03", "03", "14", "14", "25", "25"]
    assert ["".join(turn[2:]) for turn in turns] == ["012"] * 3 + ["345"] * 3


def test_shapes_are_written_as_rows_times_columns() -> None:
    assert matrices.shape_text(weight("feed_forward.up.weight", CONFIG, 2)) == "32×48"

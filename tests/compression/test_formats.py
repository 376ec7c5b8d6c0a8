"""What comes back is as near as the bound says, takes the bytes of the formula, and is never finite by mistake."""

import math

import pytest
import torch
from torch import Tensor

from reference.compression import plain
from reference.compression.elements import E4M3, E5M2, INT8, Element, chance
from reference.compression.fast.tiles import TILE, TILED, Tiled
from reference.compression.formats import FORMATS, HUGE, TINY, Scaled, ScaleKind
from reference.errors import BadInput


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


HARD = {
    "normal": normal(1000),
    "rows": normal(3, 77) * torch.exp(5 * normal(3, 77)),
    "one row": normal(1, 77),
    "all magnitudes": normal(5000) * 10.0 ** torch.linspace(-44, 38, 5000),
    "zeros": torch.zeros(300),
    "the largest there is": torch.tensor([HUGE, -HUGE, 1.0, 1e-30]).repeat(100),
    "too small for a reciprocal": torch.full((40,), TINY / 4),
    "subnormal": normal(333) * 1e-40,
    "one number": torch.tensor([3.0]),
    "none": torch.empty(0),
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_the_error_is_within_its_bound(name: str, seed: int | None) -> None:
    form = FORMATS[name]
    for what, x in HARD.items():
        payload = form.encode(x, seed)
        assert payload.dtype == torch.uint8
        assert payload.shape == (*x.shape[:-1], form.nbytes(x.shape[-1])), what
        back = form.decode(payload, x.shape[-1])
        assert ((back - x).abs() <= form.error_bound(x, by_chance=seed is not None)).all(), what
        assert back[x == 0].eq(0).all()


@pytest.mark.parametrize(
    ("name", "relative"), [("int8", 0.5 / 127), ("int4", 0.5 / 7), ("e4m3", 1 / 16), ("e5m2", 1 / 8)]
)
def test_the_bound_is_half_a_step_of_the_largest_or_less(name: str, relative: float) -> None:
    """In integers of the largest number of the block; in fp8 of each number."""
    x = normal(512).abs() + 0.5
    largest = x.view(-1, FORMATS[name].block or 512).amax(1).repeat_interleave(FORMATS[name].block)
    against = x if name in ("e4m3", "e5m2") else largest
    assert (FORMATS[name].error_bound(x) <= against * relative * 1.001).all()


@pytest.mark.parametrize("element", [E4M3, E5M2], ids=["E4M3", "E5M2"])
def test_rounding_by_hand_is_that_of_torch(element: Element) -> None:
    x = normal(20_000) * 10.0 ** torch.linspace(-9, 4, 20_000)
    x = torch.cat((x.clamp(-element.largest, element.largest), torch.linspace(-0.1, 0.1, 999), torch.tensor([-0.0])))
    assert torch.equal(element.round(x).view(torch.int32), x.to(element.dtype).float().view(torch.int32))


def test_it_is_the_plain_algorithm() -> None:
    x = normal(1024)
    codes, scales = plain.quantise(x, 256, 127)
    form = Scaled(INT8, 256)
    assert torch.equal(form.decode(form.encode(x), 1024), plain.dequantise(codes, scales))


@pytest.mark.parametrize("unfit", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_finite_arrives_as_nan(name: str, unfit: float) -> None:
    """And what shares no scale with it arrives as ever. A scale of the whole row is shared by all of it."""
    form, x = FORMATS[name], normal(1024)
    x[700] = unfit
    back = form.decode(form.encode(x), 1024)
    first, last = 700 // form.block * form.block, (700 // form.block + 1) * form.block
    assert back[first:last].isnan().all()
    others = torch.cat((back[:first], back[last:]))
    assert others.isnan().all() if form.scale is ScaleKind.E4M3 else others.isfinite().all()


def test_bytes_are_those_of_codes_and_scales() -> None:
    """1000 numbers: 4 blocks of 256, 8 of 128, 32 of 32, 63 of 16."""
    expected = {"int8": 1016, "int4": 516, "e4m3": 1032, "e5m2": 1032, "mxfp8": 1032, "nvfp4": 500 + 63 + 4}
    assert {name: form.nbytes(1000) for name, form in FORMATS.items()} == expected
    assert FORMATS["int4"].nbytes(3) == 2 + 4


def test_one_scale_for_a_tensor_for_each_row_or_for_each_block() -> None:
    """A large number spoils what shares its scale: everything, its row, its block."""
    x = normal(8, 64)
    x[0, 0] = 1e6
    whole, rows, blocks = (
        (Scaled(E4M3, block).decode(Scaled(E4M3, block).encode(y), y.shape[-1]).view(8, 64) - x).abs()
        for block, y in ((None, x.flatten()), (None, x), (16, x))
    )
    assert [int(error.gt(0.1 * x.abs()).sum()) > 0 for error in (whole, rows, blocks)] == [True] * 3
    assert whole[1:].sum() > 5 * rows[1:].sum()
    assert rows[0, 16:].sum() > 5 * blocks[0, 16:].sum()


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_by_chance_is_right_on_average(name: str) -> None:
    """The mean of 400 is within five standard errors: a step has at most a standard deviation of half of it."""
    form, x = FORMATS[name], normal(64)
    found = torch.stack([form.decode(form.encode(x, seed), 64) for seed in range(400)])
    assert len(found[:, 1].unique()) == 2
    assert ((found.mean(0) - x).abs() <= 5 * form.error_bound(x, by_chance=True) / 2 / 20).all()


def test_chance_is_of_the_seed_and_the_place() -> None:
    one, again, other = chance((10_000,), 1), chance((10_000,), 1), chance((10_000,), 2)
    assert torch.equal(one, again)
    assert torch.equal(one[:100], chance((10, 10), 1).flatten())
    assert one.min() >= 0 and one.max() < 1
    assert abs(one.mean() - 0.5) < 5 * 12**-0.5 / 100
    assert torch.corrcoef(torch.stack((one, other, one.roll(1))))[0, 1:].abs().max() < 5 / 100


def test_chance_leaves_a_number_that_is_there() -> None:
    """100 and nearly 1 are 101 in float32."""
    nearly = torch.tensor([1 - 2.0**-24])
    assert plain.stochastic_round(torch.tensor([100.0]), nearly) == 100
    assert plain.stochastic_round(torch.tensor([2.0**20 + 0.25]), torch.tensor([0.74])) == 2**20
    assert INT8.round(torch.full((1 << 21,), 100.0), seed=1).eq(100).all()


def test_a_seed_is_any_integer() -> None:
    assert chance((100,), 1 << 62).unique().numel() > 90
    assert torch.equal(chance((3,), (1 << 32) + 5), chance((3,), 5))


@pytest.mark.parametrize("formats", [FORMATS, TILED], ids=["plainly", "in tiles"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integers_are_not_quantised(formats: dict[str, Scaled], dtype: torch.dtype) -> None:
    with pytest.raises(BadInput, match="send it as it is"):
        formats["int8"].encode(torch.arange(3, dtype=dtype))


def test_a_block_may_be_longer_than_a_tile() -> None:
    x = normal(3 * TILE)
    payload = Tiled(INT8, 2 * TILE).encode(x)
    assert torch.equal(payload, Scaled(INT8, 2 * TILE).encode(x))
    assert torch.equal(Tiled(INT8, 2 * TILE).decode(payload, len(x)), Scaled(INT8, 2 * TILE).decode(payload, len(x)))


@pytest.mark.parametrize("name", FORMATS)
def test_tiles_give_the_same_bytes(name: str) -> None:
    """But for codes of what is not finite, whose scale is NaN. "At ties": what lies on them, and just beside."""
    plainly, tiled = FORMATS[name], TILED[name]
    unfit = normal(1000)
    unfit[10] = math.inf
    long = normal(TILE + 777)
    quarters = torch.arange(-24, 25) / 4.0  # with 6, the scale of NVFP4 is 1, if the row has 6 · 448
    beside = torch.stack([torch.nextafter(quarters, quarters.new_full((), to)) for to in (-9.0, 0.0, 9.0)])
    ties = torch.nn.functional.pad(torch.cat((quarters, beside.flatten())).view(-1, 14).clamp(-6, 6), (0, 2), value=6.0)
    ties = torch.cat((ties.flatten(), torch.full((256,), 6.0 * 448)))
    for x in (*HARD.values(), long, long.bfloat16(), long.double(), ties, ties / 448, unfit):
        payload = tiled.encode(x)
        assert x is unfit or torch.equal(payload, plainly.encode(x))
        numel = x.shape[-1]
        assert torch.equal(tiled.decode(payload, numel).nan_to_num(7), plainly.decode(payload, numel).nan_to_num(7))
        assert tiled.decode(payload, numel).isnan().sum() == plainly.decode(plainly.encode(x), numel).isnan().sum()

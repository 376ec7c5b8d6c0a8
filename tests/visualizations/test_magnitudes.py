"""What a format makes of numbers, against the format itself."""

from itertools import pairwise

import pytest
import torch

from visualizations import magnitudes

from .reading import assert_readable, drawn

DTYPES = (torch.float16, torch.bfloat16)


def samples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.exp2(torch.randn(20_000, generator=generator).double() * 12 - 8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shares_are_what_rounding_does(dtype):
    """A few numbers lie at an edge: the largest ones are rounded down or up to infinity. 0.1 %."""
    values, info = samples(), torch.finfo(dtype)
    rounded = values.to(dtype).double()
    found = magnitudes.shares(values.numpy(), dtype)
    assert found["become 0"] == pytest.approx((rounded == 0).double().mean().item(), abs=1e-3)
    assert found["become infinite"] == pytest.approx(rounded.isinf().double().mean().item(), abs=1e-3)
    subnormal = (rounded > 0) & (rounded < info.smallest_normal)
    assert found["lose digits"] == pytest.approx(subnormal.double().mean().item(), abs=1e-3)
    assert sum(found.values()) == pytest.approx(1)


def test_regions_of_fp16_meet_without_gaps():
    found = magnitudes.regions(torch.float16)
    assert [region.end for region in found[:-1]] == [2.0**-25, 2.0**-14, 65504.0]
    assert all(a.end == b.begin for a, b in pairwise(found))


def test_numbers_that_stay_have_all_their_digits():
    stay = next(region for region in magnitudes.regions(torch.float16) if region.name == "stay")
    values = samples()
    inside = values[(values > stay.begin) & (values < stay.end)]
    assert ((inside.half().double() - inside).abs() / inside).max() <= 2**-11


def test_the_picture_says_the_shares_and_can_be_read(monkeypatch):
    values = samples() * 2**-8
    picture = magnitudes.draw({"as they are": values, "scaled": values * 256}, torch.float16, title="Some vanish")
    assert_readable(picture, monkeypatch)
    vanish = magnitudes.shares(values.numpy(), torch.float16)["become 0"]
    assert f"{vanish:.1%} become 0" in [words for words, _, _ in drawn(picture, monkeypatch)]


def test_zeros_and_signs_do_not_count():
    one = magnitudes.draw({"x": torch.tensor([0.0, -1.0, 0.0])}, torch.float16, title="One")
    assert sum(bar.get_height() for bar in one.axes[0].patches) == 1


@pytest.mark.parametrize(
    "dtype", [*DTYPES, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_every_format_can_be_read(dtype, monkeypatch):
    assert_readable(magnitudes.draw({"x": samples()}, dtype, title="Some vanish"), monkeypatch)


def test_what_is_too_large_becomes_what_the_conversion_makes_of_it():
    """A format without infinity makes its largest number of it, or NaN."""
    made = torch.tensor(1e9).to(torch.float8_e4m3fn).item()
    last = magnitudes.regions(torch.float8_e4m3fn)[-1].name
    assert last == ("become 448" if made == 448 else "become NaN")
    assert magnitudes.regions(torch.float8_e5m2)[-1].name == "become infinite"

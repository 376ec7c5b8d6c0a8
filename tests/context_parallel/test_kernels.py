"""The kernels of a block: what each returns, held to attention by hand; those of GPUs by their shapes."""

import pytest
import torch
from torch import Tensor

from reference.context_parallel import kernels, plain

from .conftest import EXACT, normal

BATCH, HEADS, KV, QUERIES, KEYS, D = 2, 4, 2, 5, 7, 3
MASKED = torch.tensor([[key <= query and query != 2 for key in range(KEYS)] for query in range(QUERIES)])


def given(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values, and the gradient of the output."""
    shapes = {"q": (HEADS, QUERIES), "k": (KV, KEYS), "v": (KV, KEYS), "gradient": (HEADS, QUERIES)}
    return [normal(name, BATCH, *shape, D).to(dtype) for name, shape in shapes.items()]


@pytest.mark.parametrize(
    ("causal", "mask"), [(False, None), (True, None), (False, MASKED)], ids=["full", "causal", "one sees nothing"]
)
def test_a_block_is_what_it_is_by_hand(causal: bool, mask: Tensor | None) -> None:
    query, key, value, gradient = given()
    seen = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril() if causal else mask
    out, lse = plain.attend(query, key, value, seen)
    found, found_lse = kernels.forward(query, key, value, causal, mask)
    assert torch.allclose(found, out, atol=EXACT) and torch.allclose(found_lse, lse, atol=EXACT)
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    parts = kernels.backward(gradient, query, key, value, out, finite, causal, mask)
    expected = plain.attend_backward(gradient, query, key, value, out, lse, seen)
    assert all(torch.allclose(part, right, atol=EXACT) for part, right in zip(parts, expected, strict=True))


def test_two_blocks_merge_to_one() -> None:
    """Large scores, too, whose exponentials overflow, and a query that one of the blocks hides everything from."""
    query, key, value, _ = given()
    key = 1e3 * key
    first, second = MASKED[:, :3], MASKED[:, 3:].roll(1, 0)
    parts = [plain.attend(query, key[:, :, :3], value[:, :, :3], first)]
    parts += [plain.attend(query, key[:, :, 3:], value[:, :, 3:], second)]
    out, lse = plain.merge(*parts[0], *parts[1])
    right, right_lse = plain.attend(query, key, value, torch.cat([first, second], 1))
    assert torch.allclose(out, right, atol=1e-9) and torch.allclose(lse, right_lse)


@pytest.mark.parametrize("mask", [None, MASKED])
def test_the_operation_of_gpus_takes_and_gives_these_shapes(
    monkeypatch: pytest.MonkeyPatch, mask: Tensor | None
) -> None:
    """On the meta device, which checks arguments and computes nothing."""
    monkeypatch.setattr(kernels, "_is_efficient", lambda query: True)
    query, key, value, gradient = (x.to("meta") for x in given(torch.bfloat16))
    mask = None if mask is None else mask.to("meta")
    out, lse = kernels.forward(query, key, value, mask is None, mask)
    assert out.shape == query.shape and lse.shape == query.shape[:3] and lse.dtype is torch.float32
    parts = kernels.backward(gradient, query, key, value, out, lse, mask is None, mask)
    assert [part.shape for part in parts] == [query.shape, key.shape, value.shape]


class AsOnGpu:
    """The operations of GPUs, by hand: they take heads whose size is a multiple of 16 bytes, and no others."""

    def _scaled_dot_product_efficient_attention(self, query, key, value, bias, wanted, dropped, causal, *, scale):
        out, lse = plain.attend(self.given(query, scale), key, value, self.seen(query, key, bias, causal))
        return out, torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32)), None, None

    def _scaled_dot_product_efficient_attention_backward(
        self, gradient, query, key, value, bias, out, lse, seed, offset, dropped, wanted, causal, *, scale
    ):
        seen, lse = self.seen(query, key, bias, causal), lse[..., : query.shape[2]]
        of_query, *parts = plain.attend_backward(gradient, self.given(query, scale), key, value, out, lse, seen)
        return of_query * (scale * query.shape[3] ** 0.5), *parts, None

    def given(self, query: Tensor, scale: float) -> Tensor:
        assert query.shape[3] * query.element_size() % 16 == 0, "query is not correctly aligned"
        return query * (scale * query.shape[3] ** 0.5)

    def seen(self, query: Tensor, key: Tensor, bias: Tensor | None, causal: bool) -> Tensor | None:
        if causal:
            return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        return None if bias is None else bias[0, 0] == 0


@pytest.mark.parametrize(("causal", "mask"), [(False, None), (True, None), (False, MASKED)])
def test_heads_of_any_size_fit_the_operation_of_gpus(
    monkeypatch: pytest.MonkeyPatch, causal: bool, mask: Tensor | None
) -> None:
    query, key, value, gradient = given()
    expected = kernels.forward(query, key, value, causal, mask)
    finite = expected[1].masked_fill(expected[1] == -torch.inf, 0.0)
    parts = kernels.backward(gradient, query, key, value, expected[0], finite, causal, mask)
    monkeypatch.setattr(kernels, "aten", AsOnGpu())
    monkeypatch.setattr(kernels, "_is_efficient", lambda query: True)
    found = kernels.forward(query, key, value, causal, mask)
    there = kernels.backward(gradient, query, key, value, found[0], finite, causal, mask)
    for one, right in zip((*found, *there), (*expected, *parts), strict=True):
        assert torch.allclose(one, right, atol=EXACT)

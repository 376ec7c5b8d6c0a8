"""What is said to be expected on a GPU is what is counted without one. Needs no GPU."""

import sys
import warnings
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))

import expected
from counting import Counting, counted, forward_and_backward

from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig, gpt, one_kernel, ops
from reference.models.dropout import dropout, dropped, token_seeds

MB = 1e6
BATCH, SEQUENCE, WIDTH, HEADS, KV, HIDDEN = 8, 2048, 2048, 16, 8, 5632
MODEL = GPTConfig(layers=20, width=WIDTH, heads=HEADS, kv_heads=KV, hidden=HIDDEN)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def row(name: str) -> list[float]:
    """Numbers of the table in `expected`: kernels and MB as operations, and as one kernel."""
    (line,) = [line for line in expected.__doc__.splitlines() if line.startswith(f"| {name}")]
    return [float(cell.replace(",", "")) for cell in line.split("|")[2:-1]]


def test_turning_moves_nine_times_its_input_and_could_move_it_twice() -> None:
    queries = meta(BATCH, HEADS, SEQUENCE, WIDTH // HEADS)
    cos_sin = meta(2, SEQUENCE, WIDTH // HEADS // 2, dtype=torch.float64)
    forward, backward = forward_and_backward(lambda x: gpt.rotate(x, cos_sin), queries)
    once = 2 * queries.nbytes
    assert row("turning queries") == [forward.kernels, round(forward.bytes / MB), 1, round(once / MB)]
    assert backward.bytes > 9 * queries.nbytes


def test_swiglu_moves_five_times_its_input_and_could_move_three() -> None:
    gate = meta(BATCH, SEQUENCE, HIDDEN)
    forward, backward = forward_and_backward(gpt.swish_gated, gate, gate)
    assert row("SwiGLU's product") == [forward.kernels, round(forward.bytes / MB), 1, round(3 * gate.nbytes / MB)]
    assert (forward.bytes, backward.bytes) == (5 * gate.nbytes, 9 * gate.nbytes)


def test_dropout_moves_226_bytes_an_element_and_could_move_10() -> None:
    """Where the mask is one kernel that writes a byte, scaling and masking are left: 4 bytes, and 5."""
    x, seeds = meta(BATCH, SEQUENCE, WIDTH), meta(BATCH, SEQUENCE, dtype=torch.int64)
    whole = counted(lambda: dropout(x, 0.1, seeds, 0))
    assert row("dropout")[:2] == [whole.kernels, round(whole.bytes / MB)]
    assert round(whole.bytes / x.numel()) == 226
    made = counted(lambda: (x * 1.1).masked_fill_(meta(*x.shape, dtype=torch.bool), 0.0))
    assert row("dropout")[2:] == [made.kernels + 1, round((made.bytes + x.numel()) / MB)]


def attention(dtype: torch.dtype, repeats: bool) -> int:
    """Bytes of the largest tensor that attention makes."""
    query, key = meta(BATCH, HEADS, SEQUENCE, 128, dtype=dtype), meta(BATCH, KV, SEQUENCE, 128, dtype=dtype)
    with Counting() as counting:
        if repeats:  # what a GPU runs where heads are as many: its kernel has no values here, and shapes
            keys = ops.all_heads(key, query)
            torch.ops.aten._scaled_dot_product_efficient_attention(query, keys, keys, None, True, 0.0, True)
        else:  # and what it falls back to
            F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
    return counting.count.largest


def test_attention_in_fp32_keeps_pairs_of_tokens_unless_heads_are_repeated() -> None:
    pairs = BATCH * HEADS * SEQUENCE**2 * 4
    assert attention(torch.float32, repeats=False) == pairs
    assert attention(torch.float32, repeats=True) == BATCH * HEADS * SEQUENCE * 128 * 4
    assert f"{pairs / MB:,.0f} MB" in expected.__doc__.replace("\n", " ")


class OnGpu:
    """Of a tensor, what is asked before attention, where it is on a GPU."""

    def __init__(self, x: torch.Tensor, is_cuda: bool = True) -> None:
        self.is_cuda, self.shape, self.element_size = is_cuda, x.shape, x.element_size


@pytest.mark.parametrize(
    ("dtype", "kv", "needs"),
    [
        (torch.float32, KV, True),
        (torch.float64, 1, True),
        (torch.float32, HEADS, False),
        (torch.bfloat16, KV, False),
        (torch.float16, 1, False),
    ],
)
def test_heads_are_repeated_where_no_kernel_takes_groups(dtype: torch.dtype, kv: int, needs: bool) -> None:
    query, key = meta(1, HEADS, 4, 8, dtype=dtype), meta(1, kv, 4, 8, dtype=dtype)
    assert ops.needs_all_heads(OnGpu(query), OnGpu(key)) is needs
    assert not ops.needs_all_heads(OnGpu(query, is_cuda=False), OnGpu(key))


def test_repeated_heads_attend_as_groups_do(monkeypatch: pytest.MonkeyPatch) -> None:
    module = gpt.Attention(GPTConfig(layers=1, width=32, heads=4, kv_heads=2, hidden=8)).double()
    x = torch.randn(2, 6, 32, dtype=torch.float64, requires_grad=True)
    cos_sin = gpt.rotary_cos_sin(torch.arange(6), 8, 1e4)
    found = []
    for needs in (False, True):
        monkeypatch.setattr(ops, "needs_all_heads", lambda query, key, needs=needs: needs)
        y = module(x, cos_sin)
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, module.key.weight))))
    for grouped, repeated in zip(*found, strict=True):
        torch.testing.assert_close(repeated, grouped, rtol=1e-12, atol=1e-12)


def test_products_see_fewer_bits_where_tf32_is_asked_for_and_nowhere_else() -> None:
    torch.set_float32_matmul_precision("highest")
    for name, precision in PRECISIONS.items():
        with pytest.raises(ZeroDivisionError), precision.products():
            assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "highest"


def test_chains_are_one_kernel_and_give_what_they_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, by the compiler for CPUs: integers exactly, for tensors of several lengths by one kernel."""
    pytest.importorskip("torch._inductor")
    from torch._inductor import metrics

    masks = [(token_seeds(1, 2, torch.arange(tokens)), site) for tokens in (16, 33) for site in (0, 5)]
    plain = [dropped(0.3, seeds, site, 3, 96) for seeds, site in masks]
    monkeypatch.setattr(one_kernel, "compiles", lambda x: True)
    metrics.reset()
    for (seeds, site), mask in zip(masks, plain, strict=True):
        assert dropped(0.3, seeds, site, 3, 96).equal(mask)
    assert metrics.generated_kernel_count == 1


def test_a_chain_has_as_many_versions_as_a_process_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of dtypes, with and without gradients and autocast: torch gives up after 8, and another way would be slower."""
    pytest.importorskip("torch._dynamo")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(one_kernel, "compiles", lambda x: True)

    @one_kernel.one_kernel
    def chain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype, grad, mixed in product((torch.float64, torch.float32, torch.bfloat16), (True, False), (True, False)):
            x = torch.ones(2, 5, dtype=dtype, requires_grad=grad)
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed), torch.set_grad_enabled(grad):
                assert chain(x, x).equal(F.silu(x) * x)


def test_without_a_compiler_there_is_a_warning_and_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(chain):
        raise RuntimeError("no compiler\nand more")

    gate, up = torch.randn(2, 5), torch.randn(2, 5)
    plain = F.silu(gate) * up

    @one_kernel.one_kernel
    def chain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    monkeypatch.setattr(one_kernel, "compiles", lambda x: True)
    monkeypatch.setattr(one_kernel, "compiled", fails)
    with pytest.warns(UserWarning, match=r"chain runs as several kernels: .* \(no compiler\)"):
        assert chain(gate, up).equal(plain)
    assert chain(gate, up).equal(plain)  # and is not tried again
    with pytest.raises(RuntimeError, match="size of tensor"):
        chain(gate, up[:, :3])


def test_what_is_on_no_gpu_or_watched_is_not_compiled() -> None:
    x = torch.ones(2)
    assert not one_kernel.compiles(x)
    gpu = OnGpu(x)
    assert one_kernel.compiles(gpu)
    with Counting():
        assert not one_kernel.compiles(gpu)


def test_the_step_is_what_the_configuration_makes_it() -> None:
    """6 N + 12 L D S FLOPs for each token."""
    tokens = BATCH * SEQUENCE
    flops = tokens * (6 * MODEL.parameters + 12 * MODEL.layers * WIDTH * SEQUENCE)
    assert tokens == expected.TOKENS and round(MODEL.parameters / 1e9, 3) == expected.PARAMETERS / 1e9
    assert round(flops / 1e12, 1) == expected.TFLOP
    step, rate, mfu = (expected.EXPECTED[name] for name in ("step", "tokens", "MFU"))
    for ms, tokens_a_second, share in ((step.low, rate.high, mfu.high), (step.high, rate.low, mfu.low)):
        assert expected.TOKENS / ms * 1e3 == pytest.approx(tokens_a_second, rel=0.02)
        assert expected.TFLOP / ms * 1e3 / expected.PEAK * 100 == pytest.approx(share, rel=0.02)


def test_a_range_is_above_what_the_bytes_take() -> None:
    """No kernel is expected to be faster than memory: bytes of one kernel over the bandwidth of a large copy."""
    for name, words in (
        ("turning queries", "turning, one layer"),
        ("SwiGLU's product",) * 2,
        ("dropout", "dropout, one place"),
    ):
        fastest = row(name)[3] * MB / expected.BANDWIDTH * 1e3
        apart = row(name)[1] * MB / expected.BANDWIDTH * 1e3
        found = expected.EXPECTED[words]
        assert 0.8 * fastest < found.low and (found.low < apart)

"""PyTorch's own tests pass on the hand-made backend, but for those that are listed here with a reason.

All of them take about fifteen seconds of processor time. `python -m tests.collectives.torch_suite handmade` names each.
"""

import pytest
import torch
from packaging.version import Version

from .torch_suite import Outcome, Suite

BY_NAME = "before torch 2.14 monitored_barrier asks a group for its backend's name, and refuses all but gloo"
BEFORE_2_14 = Version(torch.__version__) < Version("2.14")
NAMED = ("gloo", "gloo_subgroup", "failure_order", "wait_all_ranks") if BEFORE_2_14 else ()
EXCEPTIONS = {f"test_monitored_barrier_{name}": BY_NAME for name in NAMED} | {
    "test_sparse_all_reduce_sum": "sparse tensors are refused, as the module's docstring says",
}
SMALL = "Skipped due to small world size."


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Of each test: on 3 ranks, as PyTorch's own run of them, or on the 8 that some of them need."""
    suite = Suite("handmade")
    found = dict(suite.run(suite.names()))
    return found | dict(Suite("handmade", 8).run(name for name, each in found.items() if each.text == SMALL))


def test_what_passes_on_gloo_passes_by_hand(outcomes: dict[str, Outcome]) -> None:
    failed = {name: outcome.text for name, outcome in outcomes.items() if not outcome.passed}
    assert failed.keys() == EXCEPTIONS.keys(), "\n".join(
        text for name, text in failed.items() if name not in EXCEPTIONS
    )


def test_what_is_skipped_needs_gpus(outcomes: dict[str, Outcome]) -> None:
    ran = [name for name, outcome in outcomes.items() if outcome.passed and not outcome.skipped]
    assert len(ran) > 100, "most of what needs no GPU runs"
    assert all("CUDA" in outcome.text for outcome in outcomes.values() if outcome.skipped)


def test_the_exceptions_pass_on_gloo() -> None:
    """So that the list says something, and these ranks are able to run them."""
    on_three = [name for name in EXCEPTIONS if "order" not in name and "wait_all" not in name]
    assert all(outcome.passed for _, outcome in Suite("gloo").run(on_three))

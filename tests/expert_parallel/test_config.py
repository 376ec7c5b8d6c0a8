"""Choices of a mixture of experts may be given by name, as a command line and a file do."""

import pytest

from reference.errors import BadInput
from reference.models.moe_config import Balance, Gate, MoEConfig

SIZES = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "hidden": 8}


@pytest.mark.parametrize("balance", Balance)
def test_a_name_is_as_good_as_the_choice(balance: Balance) -> None:
    """`is` distinguishes them: a bias that was asked for by name would never move."""
    config = MoEConfig(**SIZES, balance=str(balance), gate="sigmoid")
    assert config.balance is balance and config.gate is Gate.SIGMOID
    assert config == MoEConfig(**SIZES, balance=balance, gate=Gate.SIGMOID)


def test_another_name_is_refused() -> None:
    with pytest.raises(BadInput, match="balance is one of none, switch"):
        MoEConfig(**SIZES, balance="biased")

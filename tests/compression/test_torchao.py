"""Linear layers in 8 bits beside torchao's, where its environment is set up: `rankwise frameworks setup torchao`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from reference.errors import BadInput
from reference.frameworks.catalogue import FRAMEWORKS
from reference.frameworks.environments import python_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compared() -> dict[str, list[float]]:
    """What `beside_torchao` finds, by a Python that has torchao."""
    try:
        python = python_of("torchao", FRAMEWORKS["torchao"])
    except BadInput as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [python, "-m", "tests.compression.beside_torchao"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_fp8_is_torchaos_up_to_the_order_of_additions(compared: dict[str, list[float]]) -> None:
    """Codes are the same: the same scales, which are powers of two, for each token and for the matrix."""
    assert max(compared["fp8"]) < 1e-6


def test_int8_is_within_what_both_may_round(compared: dict[str, list[float]]) -> None:
    """torchao's scales are no powers of two, and each row of a matrix has one: ours are up to twice as coarse."""
    assert max(compared["int8"]) <= 1
    *products, of_weight = compared["int8, in the mean"]
    assert max(products) < 0.03
    assert of_weight < 1e-6  # in full, in both
    assert max(compared["our kernel"]) < 1e-5

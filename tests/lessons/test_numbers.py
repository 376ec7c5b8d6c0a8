"""What several lessons say of one thing is one number, and prices are paid at the rate of what is sent."""

import json
import re

import torch

from reference.memory import activations
from reference.memory.saved import total
from reference.models import PRESETS
from reference.networks.lab.published import RINGS
from reference.trace import Op
from tests.lessons.course import committed

TENSOR, STAGES = 8, 16  # ranks that share a layer of Llama 3 405B, and stages of its pipeline


def printed(lesson: str) -> str:
    """All text that the cells of a stored lesson have shown."""
    outputs = [output for cell in json.loads(committed(lesson))["cells"] for output in cell.get("outputs", [])]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join("".join(text) for text in texts)


def number(pattern: str, text: str) -> float:
    """The one number that a pattern finds in a text."""
    (found,) = set(re.findall(pattern, text))
    return float(found.replace(",", ""))


def test_three_lessons_count_the_same_activations_of_llama() -> None:
    llama = PRESETS["llama3-405b"]
    window = total(activations.block(llama, 1, 8192, torch.bfloat16)) / TENSOR * llama.layers / STAGES / 1e9
    once, piped, filled = map(printed, ("04_memory.ipynb", "09_pipeline_parallel.ipynb", "10_zero_bubble.ipynb"))
    assert number(r"405B on 16 stages: ([\d.]+) GB for each window", piped) == round(window, 2)
    for text, pattern in (
        (once, r"activations, recompute none .* ([\d.]+) GB here"),
        (filled, r"\n1F1B +bubble [^;]*; activations +([\d.]+) GB"),
    ):
        assert number(pattern, text) == round(STAGES * window, 1)


def test_fsdp_is_priced_at_the_rates_of_what_it_sends() -> None:
    """2 + 2 bytes of a parameter are gathered and 4 of its gradient are reduced, while a token takes 6 FLOPs."""
    tokens = (4 / RINGS[Op.ALL_GATHER] + 4 / RINGS[Op.REDUCE_SCATTER]) * 400e12 / 6
    assert number(r"within a node of H200 .* ([\d,]+) tokens", printed("06_zero.ipynb")) == round(tokens)


def test_a_pipeline_of_llama_stays_among_neighbouring_nodes() -> None:
    """Llama's axes are tensor, context, pipe and data, from the innermost out (its section 3.3.2)."""
    found = re.search(r"\npipe +16 ranks: (\d+), (\d+), .*, (\d+)\n", printed("13_composition.ipynb"))
    first, second, last = map(int, found.groups())
    assert (second - first, last - first) == (TENSOR, (STAGES - 1) * TENSOR)

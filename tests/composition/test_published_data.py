"""What three chapters say of Llama 3 and DeepSeek-V3 is what tables of the papers say, and the same in each of them.

The tables lie beside this file; each row names the paper, and the section or table, that it was copied from.
"""

import csv
from pathlib import Path

import pytest

from reference.composition.lab import published_layouts as layouts
from reference.composition.lab.published import SELENE
from reference.context_parallel.lab import published as of_context
from reference.expert_parallel.lab import published as of_experts
from reference.models import PRESETS


def rows(name: str) -> list[dict[str, str]]:
    """A table, row by row, as its text has it."""
    return list(csv.DictReader((Path(__file__).parent / f"{name}.csv").open()))


STAGES = rows("llama3_layouts")
DEEPSEEK = {row["item"]: row["value"] for row in rows("deepseek_v3_layout")}
GPUS = {row["gpu"]: row for row in rows("hardware")}


def test_stages_of_llama_s_training_are_those_of_table_4() -> None:
    for stage, row in zip(of_context.LLAMA3_405B, STAGES, strict=True):
        assert (stage.gpus, stage.tensor, stage.context) == (int(row["gpus"]), int(row["tp"]), int(row["cp"]))
        assert (stage.pipe, stage.data) == (int(row["pp"]), int(row["dp_implied"]))
        assert (stage.sequence, stage.windows) == (int(row["seq"]), int(row["batch_per_dp"]))
        assert f"{stage.tokens // 2**20}M" == row["tokens_per_batch"]


@pytest.mark.parametrize(("layout", "row"), [(layouts.LLAMA_8K, STAGES[1]), (layouts.LLAMA_128K, STAGES[2])])
def test_two_of_them_are_rebuilt(layout: layouts.PublishedLayout, row: dict[str, str]) -> None:
    axes = {"tp": int(row["tp"]), "cp": int(row["cp"]), "pp": int(row["pp"]), "dp": int(row["dp_implied"])}
    assert dict(layout.axes) == axes and layout.ranks == int(row["gpus"])
    assert (layout.sequence, layout.windows) == (int(row["seq"]), int(row["batch_per_dp"]))


@pytest.mark.parametrize("row", rows("llama3_models"), ids=lambda row: row["model"])
def test_models_of_llama_are_those_of_table_3(row: dict[str, str]) -> None:
    model = PRESETS[f"llama3-{row['model'].lower()}"]
    names = {"hidden": "width", "ffn": "hidden", "vocab": "vocabulary"}
    numbers = {names.get(name, name): int(value) for name, value in row.items() if value.isdigit()}
    assert {name: getattr(model, name) for name in numbers} == numbers
    assert len(numbers) == 6


def test_deepseek_s_ranks_and_batch_are_those_of_its_report() -> None:
    layout = layouts.DEEPSEEK
    assert layout.ranks == int(DEEPSEEK["gpus"])
    assert {axis: layout.size(axis) for axis in ("pp", "ep", "tp")} == {
        axis: int(DEEPSEEK[axis]) for axis in ("pp", "ep", "tp")
    }
    assert layout.batch_tokens == int(DEEPSEEK["batch_max_seqs"]) * 4096
    hours = layout.seconds * float(DEEPSEEK["tokens_t"]) * 1e12 / layout.batch_tokens * layout.ranks / 3600
    assert hours == pytest.approx(2.664e6), "table 1: hours of pre-training"


def test_deepseek_s_experts_are_most_of_its_parameters_in_both_chapters() -> None:
    model = of_experts.DEEPSEEK_V3
    experts = len(model.expert_layers) * model.experts * model.expert_parameters
    idle = experts - len(model.expert_layers) * model.top_k * model.expert_parameters
    whole, active = (float(DEEPSEEK[item]) * 1e9 for item in ("total_params_b", "active_params_b"))
    assert layouts.parameters_by_kind(layouts.DEEPSEEK_V3)["experts"] == experts < whole
    assert idle == pytest.approx(whole - active, rel=2e-3)


def test_links_are_those_of_the_table_of_gpus() -> None:
    hopper, ampere = GPUS["H100 SXM"], GPUS["A100 SXM 80GB"]
    assert float(hopper["nvlink_unidir_gbs"]) * 1e9 == layouts.H100_NVLINK
    assert float(hopper["ib_per_gpu_gbs_typical"]) * 1e9 == layouts.INFINIBAND_400
    assert float(ampere["nvlink_unidir_gbs"]) * 1e9 == layouts.A100_NVLINK == SELENE.network.intra.beta
    assert float(ampere["ib_per_gpu_gbs_typical"]) * 1e9 == SELENE.network.inter.beta
    assert float(ampere["hbm_gb"]) * 1e9 == SELENE.memory
    assert 2 / 3 < SELENE.speed / 1e12 / float(ampere["bf16_dense_tflops_peak"]) < 0.7

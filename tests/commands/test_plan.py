"""`rankwise plan`: what it prints is what a search finds, JSON says the same, and a wrong word has an answer."""

import csv
import json
import re
from pathlib import Path

import pytest

from rankwise import cli
from rankwise.planned import aligned
from reference.models.config import preset
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import Layouts
from reference.planning.predict import Prediction, predict
from reference.planning.rules import RULES, priced
from reference.planning.search import search

ASKED = ["plan", "--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--sequence", "4096", "--batch", "64"]
JOB = Job(preset("llama3-8b"), GpuCluster(gpu("h100"), 16), sequence=4096, batch=64)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints that ends well."""
    code = cli.run(list(arguments))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line with which a command refuses."""
    assert cli.run(list(arguments)) == cli.BAD_INPUT
    return capsys.readouterr().err


def test_the_best_layouts_of_a_search_are_printed_with_their_parts_and_what_rules_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, found, advice = said(capsys, *ASKED), search(JOB, count=5), priced(JOB)
    assert out.startswith(
        "llama3-8b (8.0 billion parameters) on 16 GPUs, H100 SXM, 8 on a node: a step reads 64 windows"
    )
    assert f"{found.tried:,} layouts divide, {found.fitting:,} of them fit into 80.0 GB" in out
    for each in found.best:
        assert line_of(each) in " ".join(out.split())
    assert "seconds of its step: layers " in out and "GB of its fullest rank: " in out
    assert f"rules of thumb take {advice.prediction.layouts}: {float(advice.prediction.seconds):.2f} s" in out
    for decision in advice.decisions:
        line = next(line for line in out.splitlines() if line.startswith(decision.rule.name))
        assert str(decision) in line and f"{100 * decision.loss:.1f}" in line


def line_of(each: Prediction) -> str:
    numbers = float(each.seconds), float(each.tokens_per_second), float(each.tflops_per_gpu)
    return "{:.2f} {:,.0f} {:.0f} ".format(*numbers) + (
        f"{100 * float(each.mfu):.1f} {float(each.bytes) / 1e9:.1f} {each.layouts}"
    )


def test_json_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told, found = json.loads(said(capsys, *ASKED, "--json")), search(JOB, count=5)
    assert (told["tried"], told["fitting"]) == (found.tried, found.fitting)
    assert [each["step_s"] for each in told["best"]] == [float(each.seconds) for each in found.best]
    assert len(told["frontier"]) == len(found.frontier)
    layout = told["best"][0]["layout"]
    assert {name: layout[name] for name in ("tp", "pp", "dp")} == {
        name: int(getattr(found.best[0].layouts, name)) for name in ("tp", "pp", "dp")
    }
    assert [each["rule"] for each in told["rules"]["decisions"]] == [rule.name for rule in RULES]
    assert not said(capsys, *ASKED, "--json", str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_text()) == told


def test_one_layout_is_explained_beside_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    words = "tp 16, dp 1, micro batch 1, zero1, recompute full, sequence parallel"
    out = said(capsys, *ASKED, "--explain", words.replace("zero1", "sharding none"))
    assert "1 layouts agree with that, 1 of them fit" in out
    assert "- tensor axis of 16 leaves the node of 8 GPUs" in out and "- computes " in out
    best, found = search(JOB, count=1).best[0], predict(JOB, Layouts(tp=16, sequence_parallel=True))
    assert f"slower than the best ({best.layouts})" in out
    assert float(found.seconds) > float(best.seconds)


def test_what_words_leave_open_is_the_best_of_what_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(said(capsys, *ASKED, "--explain", "tp 2, pp 2", "--json"))
    assert (told["layout"]["layout"]["tp"], told["layout"]["layout"]["pp"]) == (2, 2)
    assert {each["objection"] for each in told["verdicts"]} <= {"slower", "bubble", "computes again"}
    best = json.loads(said(capsys, *ASKED, "--explain", told["best"]["name"], "--json"))
    assert best["layout"]["step_s"] == told["best"]["step_s"] and "slower" not in str(best["verdicts"])


ROWS = [
    {"name": "one", "gpu": "h100", "gpus": 16, "layers": 32, "hidden": 4096, "ffn": 14336, "gated": 1, "heads": 32},
    {"name": "two", "gpu": "a100", "gpus": 8, "layers": 24, "hidden": 2048, "ffn": 8192, "gated": 0, "heads": 16},
]


def test_rows_of_a_file_become_a_list_in_their_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, out = tmp_path / "rows.csv", tmp_path / "out.json"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROWS[0], "seq", "global_batch", "micro_batch", "sharding"])
        writer.writeheader()
        writer.writerows({**row, "seq": 4096, "global_batch": 64, "micro_batch": 1, "sharding": "fsdp"} for row in ROWS)
    assert not said(capsys, "plan", "--rows", str(table), "--json", str(out))
    told = json.loads(out.read_text())
    assert [each["name"] for each in told] == ["one", "two"]
    assert {"step_s", "tflops_per_gpu", "hfu_pct", "mfu_pct", "memory_gb", "fits"} <= told[0].keys()
    printed = said(capsys, "plan", "--rows", str(table)).splitlines()
    assert printed[1].split()[:2] == ["one", f"{told[0]['step_s']:.2f}"]
    assert json.loads(said(capsys, "plan", "--rows", str(table), "--json")) == told


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--gpus", "12"], "12 GPUs do not fill nodes of 8"),
        (["--gpus", "0"], "a cluster has 1 GPU or more"),
        (["--batch", "0"], "a step has 1 window or more"),
        (["--gpus", "7", "--batch", "3", "--model", "tiny"], "no layout divides 7 GPUs, 3 windows"),
        (["--gpus", str(10**18)], "a cluster has 1,000,000,000 GPUs at most"),
        (["--batch", str(10**18)], "windows and their tokens are 1,000,000,000 at most"),
        (["--explain", "tp 3"], "tp 3: 64 GPUs do not divide into groups of 3: tp 3"),
        (["--explain", "tp 64"], "tp 64: 32 heads do not divide among 64 tensor-parallel ranks"),
        (["--explain", "cats"], "'cats' says nothing of a layout"),
        (["--rows", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["plan.json"], "plan.json is a file for --json"),
        (["--rules", "--explain", "tp 2"], "--rules, --explain, --rows and --calibrate are four questions: ask one"),
        (["--json", "/nowhere/plan.json", "--gpus", "8", "--model", "tiny"], "/nowhere/plan.json can't be written"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer in refused(capsys, "plan", *arguments)


def test_a_model_that_fits_nowhere_is_told_what_the_smallest_layout_needs(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "plan", "--model", "llama3-405b", "--gpus", "8", "--batch", "8")
    assert " 0 of them fit into 80.0 GB" in out and "the smallest needs " in out
    explained = said(capsys, "plan", "--model", "llama3-405b", "--gpus", "8", "--batch", "8", "--explain", "tp 8")
    assert "the smallest of these" in explained and "- does not fit by " in explained


def test_rules_that_do_not_work_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "plan", "--model", "tiny", "--gpus", "16", "--batch", "5")
    assert "rules of thumb lead to " in out and "does not divide: 5 windows do not divide among " in out


def test_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    asked, printed = re.search(r"```\n(rankwise plan [^\n]*)\n```.*?```\n(.*?)```", readme, re.DOTALL).groups()
    assert printed == said(capsys, *asked.split()[1:]), "run the command, and put its output into README.md"


def test_lines_are_aligned() -> None:
    assert list(aligned([("a", "bb"), ("ccc", "d")], left=(0,))) == ["a    bb", "ccc   d"]

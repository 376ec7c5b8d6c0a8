"""The pages on several machines show the files that there are, and what they tell one to type is understood."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from reference.launch import given
from reference.options import OPTIONS

FOLDER = Path(__file__).resolve().parents[2] / "docs/machines"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
BLOCKS = [block for page in PAGES.values() for block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M)]
TYPED = [line for language, block in BLOCKS if not language for line in block.splitlines()]


def test_there_is_a_page_for_each_way() -> None:
    assert set(PAGES) == {"README", "torchrun", "slurm", "kubernetes", "ray", "frameworks"}
    assert set(re.findall(r"\]\((\w+)\.md\)", PAGES["README"])) == set(PAGES) - {"README"}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_there(page: str) -> None:
    assert all((FOLDER / link).exists() for link in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]))
    files = re.findall(r"`((?:tests|docs|reference)/[\w/.]+)`", PAGES[page])
    assert all((FOLDER.parents[1] / file).exists() for file in files)


@pytest.mark.parametrize("name", ["train.sbatch", "on_slurm_node.sh"])
def test_the_page_on_slurm_shows_its_files(name: str) -> None:
    assert f"```bash\n{(FOLDER / name).read_text(encoding='utf-8')}```" in PAGES["slurm"]


@pytest.mark.parametrize("line", [line for line in TYPED if "reference.train" in line or "train.sbatch" in line])
def test_options_of_a_training_are_known(line: str) -> None:
    words = shlex.split(re.split(r"reference\.train|train\.sbatch", line)[1])
    assert {f"--{name.replace('_', '-')}" for name in given(words)} == {word for word in words if word.startswith("--")}


def test_the_manifest_of_kubernetes_fits_together() -> None:
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    pods = job["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    (command,) = container["args"]
    words = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(words["--nnodes"])
    assert words["--node-rank"] == "$JOB_COMPLETION_INDEX"
    name, subdomain = job["metadata"]["name"], pods["subdomain"]
    assert subdomain == service["metadata"]["name"]
    assert words["--master-addr"] == f"{name}-0.{subdomain}"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert int(words["--master-port"]) == service["spec"]["ports"][0]["port"]
    assert int(words["--nproc-per-node"]) <= int(container["resources"]["requests"]["cpu"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pods["volumes"]}


def test_the_job_of_ray_is_python_whose_options_the_page_uses() -> None:
    tree = ast.parse((FOLDER / "ray_job.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    added = {call.args[0].value for call in calls if getattr(call.func, "attr", "") == "add_argument"}
    assert added == {"--nodes", "--ranks-per-node", "--gpus"}
    (line,) = (line for line in TYPED if "ray_job.py" in line)
    own, _ = line.split("ray_job.py")[1].split("-m reference.train")
    assert {word for word in own.split() if word.startswith("--")} == {"--nodes", "--ranks-per-node"}


def test_options_of_one_machine_are_said_not_to_be_torchruns() -> None:
    here = {option.flag for option in OPTIONS.values()} & {"--ranks", "--nodes", "--link", "--log"}
    assert len(here) == 4
    assert all(f"`{flag}`" in PAGES["torchrun"] for flag in here)

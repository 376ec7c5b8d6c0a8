"""The page on frameworks, typed on two nodes of this machine: each learns there what one process does."""

import json
import re
import shlex
from pathlib import Path

import pytest

from reference.cluster import Nodes
from reference.errors import BadInput
from reference.frameworks.catalogue import find
from reference.frameworks.environments import python_of, variables
from reference.frameworks.on_rank import course_of
from reference.frameworks.plain import one_process
from reference.oracle import relative_difference

from .conftest import ROOT, ended

PAGE = (ROOT / "docs/machines/frameworks.md").read_text(encoding="utf-8")
MODULE = "-m reference.frameworks.on_rank "
TYPED = {
    tuple(line.split(MODULE)[1].split()[:2]): line
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.S | re.M)
    for line in block.splitlines()
    if MODULE in line
}


def test_the_page_has_a_command_for_each_way() -> None:
    assert set(TYPED) == {("torch", "ddp"), ("torch", "fsdp2"), ("deepspeed", "zero2"), ("accelerate", "ddp")}
    assert all("--node-rank=0" in line for line in TYPED.values())


@pytest.mark.long
@pytest.mark.parametrize("key", TYPED, ids="-".join)
def test_two_nodes_learn_what_one_process_does(two: Nodes, tmp_path: Path, key: tuple[str, str]) -> None:
    framework, features = find(*key)
    wanted, name = features[key[1]], key[0]
    try:
        python = python_of(name, framework)
    except BadInput as missing:
        pytest.skip(str(missing))
    after = re.split(r"^(?:torchrun|\$PYTHON -m torch\.distributed\.run) ", TYPED[key])[1]
    runs, said = [], tmp_path / "said"
    with variables(python) as told, said.open("w") as out:
        for node in range(2):
            typed = after.replace("--node-rank=0", f"--node-rank={node}").replace("node0", two.address(0))
            *words, _ = shlex.split(typed)
            command = [python, "-m", "torch.distributed.run", *words, str(tmp_path)]
            runs.append(two.start(node, command, stdout=out, stderr=out, environment=told))
        ended(runs, said)
    found = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    curve = [sum(step) / 2 for step in zip(*(each["losses"] for each in found), strict=True)]
    assert relative_difference(curve, one_process(course_of(*key, ""))) <= wanted.bound
    assert found[0]["events"], "what went over the link was heard"

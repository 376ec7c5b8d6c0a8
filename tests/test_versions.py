"""What `make setup` installs accepts every Python that the course says it runs on."""

import re
import tomllib
from datetime import timedelta
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from packaging.specifiers import SpecifierSet
from torch.distributed import distributed_c10d as c10d

from reference.process_group import connect, register_backend

ROOT = Path(__file__).parents[1]
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_exact_versions_accept_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    accepted = {
        f"{installed.name}=={installed.version}": installed.metadata["Requires-Python"] or ""
        for installed in distributions()
    }
    exact = set((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    assert len(accepted.keys() & exact) > 50
    assert not [pin for pin in accepted.keys() & exact if oldest not in SpecifierSet(accepted[pin])]


def test_ci_tries_both_ends_of_what_torch_may_be() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (allowed,) = (SpecifierSet(each.removeprefix("torch")) for each in project["dependencies"] if "torch" in each)
    tried = re.findall(r'torch: "(\d+)\.(\d+)\.\d+"', CI)
    minors = sorted(int(minor) for _, minor in tried)
    assert {major for major, _ in tried} == {"2"} and len(minors) > 1
    assert {minor for minor in range(30) if f"2.{minor}.0" in allowed} == set(range(minors[0], minors[-1] + 1))


def test_a_backend_in_python_is_one_that_torch_2_15_attaches_no_flight_recorder_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"gloo"}
    monkeypatch.setattr(c10d, "_FR_SELF_RECORDING_BACKENDS", known, raising=False)
    register_backend("Unrecorded", lambda options, _: None)
    assert known == {"gloo", "unrecorded"}


def test_a_group_of_gloo_is_whole_where_gloo_is_a_plugin_as_in_torch_2_15(monkeypatch: pytest.MonkeyPatch) -> None:
    part = SimpleNamespace(creator_fn=lambda *_: "a ProcessGroupGloo")
    monkeypatch.setitem(dist.Backend._plugins, "GLOO", part)
    options = SimpleNamespace(store=dist.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=5))
    assert torch.device("cpu") in connect(dist.Backend.GLOO, options)._device_types

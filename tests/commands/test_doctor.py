"""The doctor finds this machine fit, and says what to do where one is not."""

import re
import shutil

import pytest

from rankwise.commands import doctor
from rankwise.commands.doctor import State
from reference.cluster.nodes import Availability, Nodes


def test_this_machine_can_run_the_course(capsys):
    assert doctor.doctor() == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"(ok|note) +\S", line) for line in lines), lines
    assert any("4 ranks all-reduce to 6" in line for line in lines)
    assert any("Python 3." in line for line in lines)
    assert sum("nodes" in line and "links of a chosen speed" in line for line in lines) == 1


def test_what_is_missing_comes_with_a_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "2.6.0" if name == "torch" else missing(name))
    torch, *others = doctor.packages()
    assert (torch.state, "2.11" in torch.remedy) == (State.NOTE, True)
    assert all(finding.state is State.WRONG and "pip install" in finding.remedy for finding in others)


def missing(name: str) -> str:
    raise doctor.PackageNotFoundError(name)


def test_ranks_that_do_not_work_are_wrong(monkeypatch):
    monkeypatch.setattr(doctor, "total", lambda: 1 / 0)
    (finding,) = doctor.ranks()
    assert finding.state is State.WRONG
    assert "division by zero" in finding.remedy


@pytest.mark.parametrize(("why_not", "state"), [("", State.OK), ("nodes need `tc`", State.NOTE)])
def test_nodes_are_there_or_the_reason_is(why_not: str, state: State, monkeypatch):
    monkeypatch.setattr(Nodes, "available", lambda: Availability(why_not))
    (finding,) = doctor.nodes()
    assert (finding.state, finding.remedy) == (state, why_not)


def test_little_shared_memory_is_noted(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    assert "--shm-size" in doctor.shared_memory().remedy

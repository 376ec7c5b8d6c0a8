"""One step of a framework: run in ranks that are there, and stored ones, which say what their rows say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.frameworks import rows
from reference.frameworks.lab import steps
from reference.frameworks.plain import Course, one_process
from reference.trace import Op

SHORT = Course(steps=3)


@pytest.mark.parametrize("key", steps.STORED, ids="-".join)
def test_a_stored_step_sends_what_its_row_says(key: tuple[str, str]) -> None:
    (row,) = [row for row in rows.load() if (row.framework, row.feature) == key]
    step = steps.stored(*key)
    assert max(step.bytes_sent) == row.sent
    assert {str(op): sum(event.op is op for event in step.events[0]) for op in step.counted_as} == row.calls


def test_stored_steps_name_no_files_of_the_machine() -> None:
    traces = [steps.stored(*key) for key in steps.STORED]
    assert {event.file for trace in traces for events in trace.events for event in events} == {""}


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    key = steps.STORED[0]
    steps.write({key: steps.stored(*key)}, tmp_path / "steps.json")
    assert steps.stored(*key, path=tmp_path / "steps.json") == steps.stored(*key)


def test_a_run_here_has_a_curve_and_its_last_step(clusters: Callable[..., Cluster]) -> None:
    found = steps.here(clusters(2), "torch", "ddp", SHORT)
    assert found.curve == pytest.approx(one_process(SHORT), rel=1e-10)
    ((event,), _) = found.step.events
    assert event.op is Op.ALL_REDUCE
    assert event.completed is not None, "DDP waits for it inside of backward"


@pytest.mark.parametrize(
    ("framework", "feature", "words"),
    [
        ("deepspeed", "zero3", "DeepSpeed is started by `rankwise frameworks run deepspeed`"),
        ("mpi", "ddp", "`rankwise frameworks run mpi`"),
        ("torch", "hsdp", "torch hsdp takes 4 ranks, not 2"),
    ],
)
def test_what_cannot_run_here_is_refused(
    clusters: Callable[..., Cluster], framework: str, feature: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        steps.here(clusters(2), framework, feature, SHORT)


def test_a_step_that_is_not_stored_is_refused() -> None:
    with pytest.raises(BadInput, match="no step of torch ddp is stored; there are deepspeed zero1"):
        steps.stored("torch", "ddp")

"""A few random programs, right and wrong; `python -m tests.watch.generated` runs as many as one likes."""

from pathlib import Path

import pytest

from reference.cluster.errors import RankError
from tests.watch.generated.__main__ import run
from tests.watch.generated.programs import generate
from tests.watch.generated.wrong import WRONG
from tests.watch.warm import WarmClusters

SEEDS = range(7000, 7000 + 2 * len(WRONG))  # each mistake once, and as many right programs


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_programs_are_reported_and_right_ones_are_not(seed: int, tmp_path: Path, warm: WarmClusters) -> None:
    program = generate(seed)
    outcome, _ = run(program, tmp_path, warm)
    if program.mistake is None:
        assert outcome is None, f"{type(outcome).__name__}: {outcome}\n{program.source}"
    else:
        assert isinstance(outcome, RankError), f"{program.name} passes\n{program.source}"
        assert type(outcome).__name__ in program.mistake.errors, f"{outcome}\n{program.source}"


def test_a_seed_gives_the_same_program_again() -> None:
    assert [generate(seed) for seed in SEEDS] == [generate(seed) for seed in SEEDS]
    assert {generate(seed).mistake for seed in SEEDS} == {None, *WRONG}

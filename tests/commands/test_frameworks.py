"""What a person types about frameworks: what there is, the stored table, words; and what cannot be had."""

import pytest

from rankwise import cli
from rankwise.commands.frameworks import is_unexpected
from reference.frameworks import environments
from reference.frameworks.catalogue import FRAMEWORKS, find
from reference.frameworks.rows import FeatureRow


def said(capsys: pytest.CaptureFixture, line: str, code: int = 0) -> str:
    assert cli.run(line.split()) == code
    out, err = capsys.readouterr()
    return out + err


def test_all_frameworks_are_listed(capsys: pytest.CaptureFixture) -> None:
    text = said(capsys, "frameworks")
    assert all(f"{name}: {framework.title}" in text for name, framework in FRAMEWORKS.items())
    assert "fsdp2" in text


def test_the_stored_table_has_a_line_for_each_feature(capsys: pytest.CaptureFixture) -> None:
    head, *lines = said(capsys, "frameworks compare torch --stored").splitlines()
    features = FRAMEWORKS["torch"].features
    assert head.split()[:4] == ["framework", "feature", "n", "equal"]
    assert sorted(line.split()[1] for line in lines[: len(features)]) == sorted(features)
    assert f"torch zero1: {features['zero1'].differs}" in lines


def test_words_are_looked_up(capsys: pytest.CaptureFixture) -> None:
    text = said(capsys, "frameworks words reshard_after_forward")
    assert "data_parallel=zero2: torch: fully_shard(module, reshard_after_forward=False)" in text
    assert "a rank dies: our watch: rank 1" in said(capsys, "frameworks words dies")
    assert "no word" in said(capsys, "frameworks words frobnicate", 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("frameworks run", "NAME is one of rankwise, torch"),
        ("frameworks run horovod", "no framework is called 'horovod'"),
        ("frameworks compare horovod", "no framework is called 'horovod'"),
        ("frameworks compare horovod --stored", "no framework is called 'horovod'"),
        ("frameworks run torch --feature fsdp3", "torch has no feature 'fsdp3' here; there are ddp"),
    ],
)
def test_what_there_is_not_is_said(capsys: pytest.CaptureFixture, line: str, words: str) -> None:
    assert words in said(capsys, line, 2)


def test_what_is_not_installed_is_said_with_what_installs_it(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(environments, "folder", lambda name: tmp_path / name)
    assert "`rankwise frameworks setup deepspeed` makes it" in said(capsys, "frameworks run deepspeed", 2)
    assert "deepspeed is not installed: its rows are the stored ones" in said(capsys, "frameworks compare deepspeed")


def test_setup_says_that_the_project_has_it(capsys: pytest.CaptureFixture) -> None:
    assert "the project's own environment has it" in said(capsys, "frameworks setup torch")


def test_a_run_that_ends_otherwise_than_the_catalogue_says_is_a_failure() -> None:
    _, features = find("torch", "ddp")
    bound = features["ddp"].bound
    assert not is_unexpected(FeatureRow("torch", "ddp", 2, 1, apart=0.0, bound=bound))
    assert is_unexpected(FeatureRow("torch", "ddp", 2, 1, apart=1e-3, bound=bound))
    assert is_unexpected(FeatureRow("torch", "ddp", 2, 1, error="it broke"))
    assert not is_unexpected(FeatureRow("megatron", "sp", 2, 1, error="Torch not compiled with CUDA enabled"))
    assert is_unexpected(FeatureRow("megatron", "sp", 2, 1, error="it took longer than 600 s"))
    assert not is_unexpected(FeatureRow("fairscale", "sharded", 2, 1, apart=1e-1, bound=bound))

"""What ranks print: whole lines, each with its rank, not without end."""

import ctypes
import subprocess
import sys
from contextlib import suppress

import torch.distributed as dist

from reference.cluster import Cluster, RankError
from reference.cluster.output import SHOWN


def lines(captured: str, rank: int) -> list[str]:
    """What one rank printed."""
    head = f"[rank {rank}] "
    return [line.removeprefix(head) for line in captured.splitlines() if line.startswith(head)]


def test_lines_carry_their_rank(clusters, capsys):
    clusters(3).run(lambda: print("hello\nfrom", dist.get_rank()))
    out = capsys.readouterr().out
    assert [lines(out, rank) for rank in range(3)] == [["hello", f"from {rank}"] for rank in range(3)]
    assert len(out.splitlines()) == 6


def test_prints_are_there_when_the_call_returns(clusters, capsys):
    for i in range(20):
        clusters(2).run(print, i)
        assert lines(capsys.readouterr().out, 1) == [str(i)]


def test_a_line_that_is_not_ended_is_shown_and_does_not_run_into_the_next_call(clusters, capsys):
    clusters(2).run(lambda: print("begun", end=""))
    clusters(2).run(lambda: print("next"))
    assert lines(capsys.readouterr().out, 0) == ["begun", "next"]


def test_stderr_and_children_and_raw_writes_are_shown(clusters, capsys):
    def speak() -> None:
        print("error", file=sys.stderr)
        sys.stdout.buffer.write(b"raw\n")
        sys.stdout.flush()
        subprocess.run(["echo", "child"])

    clusters(2).run(speak)
    assert sorted(lines(capsys.readouterr().out, 1)) == ["child", "error", "raw"]


def test_unicode_arrives_and_what_is_none_does_no_harm(clusters, capsys):
    def speak() -> None:
        print("Größe 🎉 " * 3000)
        sys.stdout.buffer.write(b"\xff\xfe\n")

    clusters(2).run(speak)
    assert lines(capsys.readouterr().out, 0) == ["Größe 🎉 " * 3000, "\ufffd\ufffd"]


def test_of_a_progress_bar_the_last_state_is_shown(clusters, capsys):
    clusters(2).run(lambda: print("\r10 %\r20 %\r100 %"))
    assert lines(capsys.readouterr().out, 0) == ["100 %"]


def test_output_is_bounded_and_says_so(clusters, capsys):
    clusters(2).run(lambda: [print("x" * 99) for _ in range(1200)] if dist.get_rank() == 0 else print("short"))
    out = capsys.readouterr().out
    assert len(out) < 2 * SHOWN
    assert "the rest of this call's output is not shown" in lines(out, 0)[-1]
    assert lines(out, 1) == ["short"]


def test_each_call_may_print_anew(clusters, capsys):
    for _ in range(3):
        clusters(2).run(lambda: print("y" * 40_000))
    assert sum(map(len, lines(capsys.readouterr().out, 0))) == 120_000


def test_prints_before_a_fault_are_shown(clusters, capsys):
    def crash() -> None:
        print("last words of", dist.get_rank())
        ctypes.string_at(0)

    try:
        clusters(2).run(crash)
    except Exception as error:
        assert "SIGSEGV" in str(error)
    assert lines(capsys.readouterr().out, 1) == ["last words of 1"]


def test_ranks_that_end_while_they_start_do_not_complain_of_each_other(capsys):
    for _ in range(6):
        with Cluster(24) as cluster:
            cluster.run(int)
            with suppress(RankError):
                cluster.run(int, "not a number")
    assert capsys.readouterr().out == ""

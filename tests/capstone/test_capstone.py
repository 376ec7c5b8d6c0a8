"""The capstone: right solutions in all seats are as one process; a wrong one is named, and no other."""

import json
import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.capstone import card, challenges, controls, scale, told
from puzzles.capstone.engines import MACHINES, RANKS
from puzzles.capstone.scale import REPLICAS, schedules, step_of_64
from puzzles.capstone.seats import KEPT, KNOWN, PUZZLES, SEATS
from puzzles.capstone.texts import Own, of_answers, of_folder, own
from puzzles.grading import text
from puzzles.grading.course import Course
from rankwise import cli
from rankwise.commands import capstone
from reference.cluster import Cluster, RankError
from reference.errors import BadInput

FIRST = tuple(seat.puzzles[0] for seat in SEATS)  # of each seat, the one that takes it
BETWEEN_STEPS = {seat.puzzles[0] for seat in SEATS if seat.part == KEPT}


def test_ranks_have_all_that_texts_are_given() -> None:
    given = {home for each in of_answers(KNOWN).values() for home, _ in each.given}
    assert given <= set(card.PRELOAD)


def wrong(name: str, mistake: str) -> Own:
    """A wrong solution of the catalogue, by the name of its mistake."""
    puzzle = catalog.find(name)
    (found,) = [each for each in puzzle.wrong if each.name == mistake]
    return own(name, text.wrong(puzzle, found))


@pytest.fixture(scope="module")
def answers() -> dict[str, Own]:
    return of_answers(FIRST)


@pytest.fixture
def four(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(RANKS, preload=card.PRELOAD)


def test_the_table_names_puzzles_and_engines_that_there_are() -> None:
    assert len(SEATS) == len({seat.name for seat in SEATS}) >= 40
    assert set(KNOWN) <= set(catalog.names())
    assert {engine for seat in SEATS for engine in seat.engines} == set(MACHINES)


@pytest.mark.long
def test_an_engine_of_right_solutions_is_as_one_process_and_calls_each_of_them(
    four: Cluster, answers: dict[str, Own]
) -> None:
    calls: Counter[str] = Counter()
    for machine in MACHINES.values():
        for found in four.run(controls.run, machine, answers):
            assert card.off(found, machine) < card.EXACT, machine.name
            calls.update(found["calls"])
    assert set(calls) == set(FIRST) - BETWEEN_STEPS


@pytest.mark.long
@pytest.mark.parametrize("name", ["saved by four", "a rank dies", "a learning rate of 0", "one rank equals"])
def test_a_control_holds_of_right_solutions(name: str, four: Cluster, answers: dict[str, Own]) -> None:
    (chosen,) = [each for each in card.CONTROLS if each[0].startswith(name)]
    result = card.control(*chosen, four, answers)
    assert result.holds, result


PLANTED = [
    ("tensor", {"tensor_parallel.column_linear": "the gradient of x is only this rank's"}),
    ("context", {"context_parallel.ring_backward": "gradients of keys and values are one hop short"}),
    ("experts", {"expert_parallel.combine": "not weighed"}),
    ("data", {"data_parallel.token_weighted_loss": "each by its own tokens"}),
    ("shards", {"zero.clip_by_norm": "each clips by the norm of its own shards"}),
    ("mixture", {"expert_parallel.auxiliary_loss": "without E: the loss of busy experts is 1/E"}),
    (
        "tensor",
        {
            "tensor_parallel.column_linear": "the gradient of x is averaged",
            "data_parallel.flat_bucket": "averaged",
        },
    ),
]
BESIDE = {  # right ones, that must not be blamed
    "tensor": ("tensor_parallel.row_linear",),
    "context": ("context_parallel.merge_blocks",),
    "experts": ("expert_parallel.dispatch",),
    "data": ("data_parallel.shard_batch",),
    "shards": ("memory.recompute_block",),
    "mixture": ("expert_parallel.permute_and_come_back",),
}


@pytest.mark.long
@pytest.mark.parametrize(("engine", "planted"), PLANTED, ids=lambda each: each if isinstance(each, str) else len(each))
def test_a_wrong_solution_is_named_and_no_other(engine: str, planted: dict[str, str], four: Cluster) -> None:
    functions = of_answers(BESIDE[engine]) | {name: wrong(name, mistake) for name, mistake in planted.items()}
    result = card.control("as one process", engine, card.parity, four, functions)
    assert not result.holds
    assert set(result.blame) == set(planted)
    made = card.Card(card.filled(functions), {}, (result,), {}, (), {}, 0.0)
    assert not made.passed
    lines = "\n".join(told.lines(made))
    assert all(name in lines for name in planted)
    assert lines.count("✗ ") >= 2 * len(planted), "in the picture and in the table"


@pytest.mark.long
def test_a_state_that_comes_back_without_its_moments_is_seen_and_named(four: Cluster) -> None:
    name = "resilience.neighbours_copy"
    functions = of_answers(("ranks.ring_shift",)) | {name: wrong(name, "weights without moments")}
    (death,) = [each for each in card.CONTROLS if each[0].startswith("a rank dies")]
    result = card.control(*death, four, functions)
    assert (result.holds, result.blame) == (False, (name,))


def test_an_engine_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["capstone", "--engine", "steam"]) == cli.BAD_INPUT
    assert "there is no engine 'steam': there are data, shards" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--engine", "--json"])
def test_what_is_for_the_card_is_refused_beside_challenges(capsys: pytest.CaptureFixture, option: str) -> None:
    assert cli.run(["capstone", "--challenges", option, "data"]) == cli.BAD_INPUT
    assert f"{option} is for the card" in capsys.readouterr().err


def test_what_a_class_compares_stands_apart_from_what_is_measured() -> None:
    made = card.Cost("data", (2, 1), (2, 1), (30, 20), 0.5, {"zero.clip_by_norm": 3})
    told_of = card.Card({}, {}, (), {"data": ()}, (made,), {"step": 1.0}, 9.0).as_json()
    assert told_of["costs"] == [{"engine": "data", "bytes": (2, 1), "calls": (2, 1), "ran": {"zero.clip_by_norm": 3}}]
    assert told_of["measured"] == {"data": {"pace": 0.5, "peak": (30, 20)}}
    assert told_of["passed"]


def test_where_the_reference_alone_fails_nobody_is_blamed() -> None:
    functions = of_answers(("tensor_parallel.row_linear",))
    never = card.control("never", "tensor", lambda *_: (1.0, 0.0), None, functions)
    assert (never.holds, never.blame) == (False, ())


def test_who_is_wrong_only_together_is_found_by_taking_one_away() -> None:
    """Two that fail together and not alone: each is named, since without it the control holds."""
    names = ("tensor_parallel.row_linear", "tensor_parallel.column_linear", "data_parallel.flat_bucket")

    def together(cluster: None, machine: object, functions: dict[str, Own]) -> tuple[float, float]:
        return float({*names[:2]} <= set(functions)), 0.5

    assert set(card.control("together", "tensor", together, None, of_answers(names)).blame) == set(names[:2])


def test_who_is_known_to_be_wrong_elsewhere_is_not_blamed_for_what_it_does_not_do() -> None:
    clips, loads = names = ("zero.clip_by_norm", "resilience.reshard_4_to_3")

    def fails_with(*wrong: str) -> tuple[str, ...]:
        def go(cluster: None, machine: object, functions: dict[str, Own]) -> tuple[float, float]:
            return float({*wrong} <= set(functions)), 0.5

        return card.control("a control", "shards", go, None, of_answers(names), known=names).blame

    assert (fails_with(clips), fails_with(loads), fails_with(*names)) == ((clips,), (loads,), names)


class Finds:
    """In the place of ranks: each finds something."""

    def __init__(self, *found: dict[str, object]) -> None:
        self.found = found

    def run(self, *_: object) -> tuple[dict[str, object], ...]:
        return self.found


def test_a_nan_of_one_rank_in_one_step_does_not_hold() -> None:
    still = {"losses": [5.0, 5.0, 5.0], "moved": 0.0}
    lost, moved = {**still, "losses": [5.0, math.nan, 5.0]}, {**still, "moved": math.nan}
    apart = {**still, "losses": [5.0, 5.0, 5.0 + 1e-12]}
    for found, right in ((still, True), (lost, False), (moved, False), (apart, False)):
        assert card.holds(card.constant, Finds(still, found), None, {}) == right, found
    learnt = [{"losses": [5.0, last]} for last in (1.0, math.nan)]
    assert card.holds(card.learnt, Finds(learnt[0]), None, {})
    assert not card.holds(card.learnt, Finds(*learnt), None, {})


def test_texts_of_a_folder_are_taken_as_they_stand(tmp_path: Path) -> None:
    def put(name: str, source: str) -> None:
        path = (tmp_path / "puzzles").joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    right, ring, stub = "tensor_parallel.row_linear", "collectives.ring_all_reduce", "zero.clip_by_norm"
    put(right, text.solution(catalog.find(right)))
    puzzle = catalog.find(ring)
    (native,) = [each for each in puzzle.wrong if each.name == "torch's own"]
    put(ring, text.wrong(puzzle, native))
    put(stub, text.stub(catalog.find(stub)))
    put("memory.chunked_loss", "def chunked_loss(:\n")
    found = of_folder(tmp_path, PUZZLES)
    assert set(found.functions) == {right}
    assert set(found.refused) == {ring, "memory.chunked_loss"}
    assert "all_reduce" in found.refused[ring]
    with pytest.raises(BadInput, match="holds no puzzles"):
        of_folder(tmp_path / "nothing", PUZZLES)


def test_the_step_of_64_gpus_is_the_same_in_each_run_and_knows_a_slow_all_reduce(
    clusters: Callable[..., Cluster],
) -> None:
    eight = clusters(REPLICAS, preload=card.PRELOAD)
    ring = of_answers(("collectives.ring_all_reduce", "pipeline_parallel.one_f_one_b_order"))
    slow = of_answers(("collectives.naive_all_reduce", "pipeline_parallel.gpipe_order"))
    first = step_of_64(ring, eight)
    assert first == step_of_64(ring, eight)
    assert step_of_64(slow, eight)["sums of gradients"] > 2 * first["sums of gradients"]
    assert first["step"] == pytest.approx(first["stages"] + first["sums of gradients"] + first["update"])


class Calls:
    """In the place of ranks: a function is called here."""

    def run(self, function: Callable[..., object], *given: object) -> list[object]:
        return [function(*given)]


def test_an_order_without_backward_has_no_step_of_64_gpus() -> None:
    names = ("pipeline_parallel.one_f_one_b_order", "pipeline_parallel.gpipe_order")
    functions = of_answers(names[:1]) | {names[1]: lambda rank, p, m: [f"F{rank}.{k}" for k in range(m)]}
    with pytest.raises(BadInput, match="nothing goes backward"):
        schedules(functions, Calls(), 4, 8)


@pytest.mark.parametrize("error", [None, BadInput("F7.0 is missing"), RankError("exception", "no", rank=7)], ids=repr)
def test_the_step_of_64_gpus_is_of_code_that_has_run_and_its_errors_are_said(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, said = [], []

    def step(functions: dict[str, Own], cluster: None) -> dict[str, float]:
        taken.extend(functions)
        if error:
            raise error
        return {"step": 1.0}

    monkeypatch.setattr(scale, "step_of_64", step)
    monkeypatch.setattr(card, "ranks", lambda *size: nullcontext(Finds([])))
    monkeypatch.setattr(card, "CONTROLS", ())
    monkeypatch.setattr(card, "cost", lambda *_: card.Cost("pipeline", (1, 1), (1, 1), (1, 1), 1.0, {}))
    pair = ("pipeline_parallel.one_f_one_b_order", "composition.norm_over_all_axes")
    functions = of_answers((*pair, "pipeline_parallel.gpipe_order", "zero_bubble.zb_h1_order"))
    made = card.card_of(functions, engines=("pipeline",), say=said.append)
    assert taken == [*pair], "gpipe_order has no seat, and no engine has run zb_h1_order"
    assert made.scale == ({} if error else {"step": 1.0})
    assert len(said) == (2 if error else 1)


def test_a_schedule_that_holds_too_much_does_not_count_and_none_is_below_the_bound(
    tmp_path: Path, four: Cluster
) -> None:
    functions = of_answers(("pipeline_parallel.gpipe_order", "zero_bubble.zb_h1_order"))
    found = {each.who: each for each in challenges.shortest_wait(functions, tmp_path, four)}
    assert found["pipeline_parallel.gpipe_order"].value is None
    assert "may hold 4" in found["pipeline_parallel.gpipe_order"].why
    assert found["zero_bubble.zb_h1_order"].value == found["reference ZB-H1"].value
    assert all(each.value >= each.bound for each in found.values() if each.value is not None)


SUMS = """
import torch.distributed as dist

def all_reduce(x, intra, inter, group):
    dist.all_reduce(x, group=intra)
    dist.all_reduce(x, group=inter)
"""


SPOILS_AT = """
import torch.distributed as dist

calls = []

def sums(gradients, group):
    calls.append(1)
    for gradient in gradients:
        dist.all_reduce(gradient, group=group)
        if len(calls) == {}:
            gradient.fill_(float("nan"))
"""
NO_SUMS = """
def all_reduce(x, intra, inter, group):
    x.fill_(float("nan"))
"""


@pytest.mark.parametrize("sums", [SUMS, SUMS.replace("group=inter", "group=intra"), NO_SUMS], ids=["right", "a", "nan"])
def test_a_file_takes_part_and_wrong_sums_do_not_count(
    sums: str, tmp_path: Path, clusters: Callable[..., Cluster]
) -> None:
    (tmp_path / "capstone").mkdir()
    (tmp_path / "capstone" / "all_reduce.py").write_text(sums)
    entries = challenges.fastest_all_reduce({}, tmp_path, clusters(REPLICAS, preload=card.PRELOAD))
    found = {each.who: each for each in entries}
    assert (found["all_reduce.py"].value is not None) == (sums is SUMS)
    assert all(each.value > each.bound for each in entries if each.value is not None)
    assert found["reference, two levels"].value < found["reference ring"].value


def test_replicas_that_end_with_nans_are_apart(tmp_path: Path, four: Cluster) -> None:
    (tmp_path / "capstone").mkdir()
    spoils = SPOILS_AT.format(challenges.TRIES)
    (tmp_path / "capstone" / "sums.py").write_text(spoils)
    exact, spoilt = challenges.fewest_bytes({}, tmp_path, four)
    assert exact.value > exact.bound > 0
    assert (spoilt.value, spoilt.why) == (None, "replicas have other weights in the end")


SIZED = {"tp": 8, "pp": 4, "dp": 2, "sequence_parallel": True}
PLANS = [
    ("[1", "it is no object of JSON"),
    ({"tp": -8, "pp": -8}, "whole numbers, 1 or more"),
    ({**SIZED, "micro_batch": 0}, "whole numbers, 1 or more"),
    ({**SIZED, "micro_batch": 0.5}, "whole numbers, 1 or more"),
    ({**SIZED, "tp": 10**400}, "no object of JSON with a layout"),
    ({**SIZED, "sharding": "zero7"}, "'zero7' is not a valid Sharding"),
    ({**SIZED, "recompute": "x"}, "'x' is not a valid Recompute"),
    ({**SIZED, "sequence_parallel": "no"}, "true or false"),
    ({**SIZED, "micro_batch": 3}, "512 windows do not divide"),
    ({**SIZED, "dp": 1}, "are 32 ranks, and there are 64 GPUs"),
    ({"tp": 8, "dp": 8, "sequence_parallel": True}, "its fullest rank needs"),
]


@pytest.mark.parametrize(("plan", "why"), PLANS, ids=lambda each: str(each)[:40])
def test_a_plan_that_cannot_be_does_not_count(plan: object, why: str, tmp_path: Path) -> None:
    (tmp_path / "capstone").mkdir()
    (tmp_path / "capstone" / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    found = {each.who: each for each in challenges.best_plan(tmp_path)}["plan.json"]
    assert found.value is None
    assert why in found.why


def test_a_plan_says_its_choices_in_words(tmp_path: Path) -> None:
    def seconds(**choices: str) -> float:
        (tmp_path / "capstone" / "plan.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(SIZED | choices).encode())
        return {each.who: each.value for each in challenges.best_plan(tmp_path)}["plan.json"]

    (tmp_path / "capstone").mkdir()
    assert seconds(sharding="none") == seconds() != seconds(sharding="zero1")
    assert seconds(recompute="full") > seconds(recompute="selective") > seconds()
    (tmp_path / "capstone" / "plan.json").write_bytes(b"\xff\xfe")
    assert {each.who: each.value for each in challenges.best_plan(tmp_path)}["plan.json"] is None


def test_records_keep_the_best_of_each(tmp_path: Path) -> None:
    def entry(who: str, value: float | None) -> challenges.Entry:
        return challenges.Entry("schedule", who, value, "F", 3.0)

    challenges.keep(tmp_path, [entry("a", 9.0), entry("b", 5.0), entry("c", None)])
    table = challenges.keep(tmp_path, [entry("a", 4.0), entry("b", 6.0)])
    assert [(each.who, each.value) for each in table] == [("a", 4.0), ("b", 5.0)]
    assert challenges.records(tmp_path) == table
    (tmp_path / "capstone" / "records.json").write_text("no table")
    with pytest.raises(BadInput, match="no table of records"):
        challenges.records(tmp_path)


def test_the_command_line_tries_an_entry_and_keeps_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the challenge that needs no ranks; the others are tried above."""
    monkeypatch.setattr(capstone, "course_of", lambda root: Course(tmp_path))
    monkeypatch.setattr(challenges, "ranks", lambda *size: nullcontext())
    for other in ("fastest_all_reduce", "shortest_wait", "fewest_bytes"):
        monkeypatch.setattr(challenges, other, lambda *arguments: [])
    plan = tmp_path / "capstone" / "plan.json"
    plan.parent.mkdir()

    def told() -> dict[str, str]:
        assert cli.run(["capstone", "--challenges"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  plan")]
        return {line[14:54].strip(): line[54:].strip() for line in lines}

    plan.write_text("tp 8")
    assert told()["plan.json"].startswith("does not count: it is no object of JSON")
    plan.write_text(json.dumps({"tp": 8, "pp": 4, "dp": 2, "sequence_parallel": True}))
    kept = told()
    value, unit, _, bound, ratio, _ = kept["plan.json"].split()
    assert unit == "s" and float(value) / float(bound) == pytest.approx(float(ratio), abs=0.01) and float(ratio) >= 1
    plan.unlink()
    assert told() == kept, "a record outlives its file"

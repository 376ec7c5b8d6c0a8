"""expert_parallel.place_experts: copies of busy experts, and slots on ranks, so that none waits for long."""

import heapq
import random

from torch import Tensor

from puzzles.grading.drives.context_heads import as_numbers
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.expert_parallel.answers.placing import place_experts

TWELVE = (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86)  # the example of EPLB's own page
ONE_BUSY = (997, 31, 11, 43, 23)
NEARLY_EVEN = (101, 89, 97, 103, 83, 107)
CHANCE = random.Random(29)
OTHERS = [tuple(CHANCE.randrange(1, 10_000) for _ in range(CHANCE.randrange(5, 14))) for _ in range(60)]
SKEWED = [
    tuple(10_000 // rank + CHANCE.randrange(200) for rank in range(1, CHANCE.randrange(6, 14))) for _ in range(60)
]
MANY = 50_000


def loads_of(case):
    """As the case says, or so many drawn by its seed."""
    if isinstance(case.loads, tuple):
        return list(case.loads)
    chance = random.Random(case.seed)
    return [int(chance.paretovariate(1.2) * 1000) + chance.randrange(1000) for _ in range(case.loads)]


def slots_of(case):
    """Of all ranks."""
    return case.ranks * case.here


def greedy(case):
    """What the busiest rank has to do, if each decision is the one that looks best: all slots, one after another."""
    parts = [(-load, 1, load) for load in loads_of(case)]
    heapq.heapify(parts)
    for _ in range(slots_of(case) - len(parts)):
        _, count, load = parts[0]
        heapq.heapreplace(parts, (-load / (count + 1), count + 1, load))
    weights = sorted((load / count for _, count, load in parts for _ in range(count)), reverse=True)
    ranks = [(0.0, case.here) for _ in range(case.ranks)]
    full = []
    for weight in weights:
        load, room = heapq.heappop(ranks)
        if room == 1:
            full.append(load + weight)
        else:
            heapq.heappush(ranks, (load + weight, room - 1))
    return max(full)


def as_good_as_greedy(case, inputs, outputs, trace):
    """Each expert has a slot, and no rank has more to do than with the greedy way."""
    found, loads, here = outputs[0]["returns"], loads_of(case), case.here
    if not isinstance(found, Tensor):
        return [Claim(False, "it must return a list with a whole number for each slot: the expert that is there")]
    found = found.tolist()
    if len(found) != slots_of(case):
        return [Claim(False, f"{len(found)} experts for {slots_of(case)} slots")]
    copies = [0] * len(loads)
    for expert in found:
        if not 0 <= expert < len(loads):
            return [Claim(False, f"experts are 0 to {len(loads) - 1}, and here is {expert}")]
        copies[expert] += 1
    if 0 in copies:
        return [Claim(False, f"expert {copies.index(0)} has no slot: its tokens have nowhere to go")]
    shares = [load / count for load, count in zip(loads, copies, strict=True)]
    works = [sum(shares[expert] for expert in found[rank * here : (rank + 1) * here]) for rank in range(case.ranks)]
    most, allowed = max(works), greedy(case) * (1.01 if len(loads) == MANY else 1 + 1e-9)  # of many, some are equal
    told = f"ranks have {[round(work, 1) for work in works]} to do" if case.ranks <= 9 else "a rank has too much to do"
    more = f"{told}: {most:.1f} at most, where {allowed:.1f} is easy to reach"
    return [Claim(most <= allowed, more)]


BUSY = r"ranks have \[.*\] to do: [\d.]+ at most, where [\d.]+ is easy to reach"

PUZZLE = Puzzle(
    name="expert_parallel.place_experts",
    title="Experts by load, with copies",
    statement="""
        Some experts get many more tokens than others, and a layer waits for its busiest rank. So there are more slots
        than experts: the spare ones hold copies of busy experts. Copies of an expert share its tokens equally. All
        ranks have as many slots, since a slot is memory.

        Which experts get how many copies, and which slots go together on a rank, so that the busiest rank has as little
        to do as possible? No quick way to the best placement is known. A greedy way comes close: it gives out one spare
        slot after another, and then puts one slot after another on a rank, and never looks back. What passes is any
        placement whose busiest rank has no more to do than with that.

        Args:
            loads: of the experts, in tokens, whole numbers from 0 on, in any order.
            ranks: n, which divides the slots.
            slots: of all ranks together, at least as many as experts.

        Returns: a list with the expert of each slot, those of rank 0 first, then those of rank 1, and so on. Each
        expert has at least one slot. An expert may have two on one rank.

        Budget: 50,000 experts in 80,000 slots on 4,000 ranks in two seconds of processor time; 100 + 20 for each slot
        are the lines that it may run.
        """,
    function=place_experts,
    cases=cases(worlds=(1,), loads=(TWELVE,), ranks=(8,), here=(2,))
    + cases(worlds=(1,), loads=(ONE_BUSY,), ranks=(4, 3), here=(2, 3))
    + cases(worlds=(1,), loads=(NEARLY_EVEN,), ranks=(2, 3, 6), here=(3,))
    + cases(worlds=(1,), loads=(TWELVE,), ranks=(3, 4), here=(4, 5))
    + cases(worlds=(1,), loads=((0, 0, 0), (5, 0, 0)), ranks=(3,), here=(2,))
    + cases(worlds=(1,), loads=((7,), (3, 2)), ranks=(1, 4), here=(2,)),
    drawn=(
        drawn(
            worlds=(1,),
            loads=OTHERS,
            ranks=range(2, 7),
            here=lambda so_far: [-(-len(so_far.loads) // so_far.ranks) + k for k in (0, 1, 2)],
        ),
        drawn(
            worlds=(1,),
            loads=SKEWED,
            ranks=range(2, 7),
            here=lambda so_far: [-(-len(so_far.loads) // so_far.ranks) + k for k in (0, 1, 2)],
        ),
    )
    * 2,
    scale=Scale(
        cases(worlds=(1,), loads=(MANY,), ranks=(4_000,), here=(20,)),
        "the number of slots times that of ranks or experts",
    ),
    inputs=lambda case, rank: {"loads": loads_of(case), "ranks": case.ranks, "slots": slots_of(case)},
    judge=as_good_as_greedy,
    drive=as_numbers,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 100 + 20 * slots_of(case),
            optimum=lambda case: 10 + 5 * slots_of(case),
            why="decide once for each slot: no need to try other placements",
        ),
    ),
    hints=(
        "Experts with 90 and 60 tokens, and two spare slots. Which one gets the first? What does each copy have then, "
        "and which one gets the second?",
        "The next spare slot goes to the expert whose copies have most load each. Then pack as one packs a car: the "
        "slot with most load first, each on the rank that has least load so far and still has room.",
        "`heapq` keeps what has most, or least, in front: (-load / copies, expert) for the copies; (load, rank) for "
        "the ranks. Do not put a rank back that has slots / n experts.",
    ),
    wrong=(
        Wrong(
            "in their own order, and the first ones again",
            diagnosis=BUSY,
            body="return [slot % len(loads) for slot in range(slots)]",
        ),
        Wrong(
            "all spare slots to the busiest expert",
            diagnosis=BUSY,
            edits=(("(-loads[expert] / copies[expert], expert)", "(-loads[expert], expert)"),),
        ),
        Wrong(
            "one more slot for each of the busiest experts",
            diagnosis=BUSY,
            edits=(
                (
                    "        expert = heaviest[0][1]\n        copies[expert] += 1\n"
                    "        heapq.heapreplace(heaviest, (-loads[expert] / copies[expert], expert))\n",
                    "        if not heaviest:\n            heaviest = [(-load, e) for e, load in enumerate(loads)]\n"
                    "            heapq.heapify(heaviest)\n"
                    "        copies[heapq.heappop(heaviest)[1]] += 1\n",
                ),
            ),
        ),
        Wrong(
            "packed as if each copy had all of the load",
            diagnosis=BUSY,
            edits=(("    shares = [(load / count, expert)", "    shares = [(load, expert)"),),
        ),
        Wrong(
            "the lightest slots first",
            diagnosis=BUSY,
            edits=(("sorted(shares, reverse=True)", "sorted(shares)"),),
        ),
        Wrong(
            "on the first rank that has room",
            diagnosis=BUSY,
            edits=(("heapq.heappush(lightest, (load + share, rank))", "heapq.heappush(lightest, (0.0, rank))"),),
        ),
        Wrong(
            "copies of an expert in a row, rank by rank",
            diagnosis=BUSY,
            body="""
                copies = [1] * len(loads)
                for _ in range(slots - len(loads)):
                    copies[max(range(len(loads)), key=lambda expert: loads[expert] / copies[expert])] += 1
                return [expert for expert, count in enumerate(copies) for _ in range(count)]
                """,
        ),
        Wrong(
            "dealt out in turn, the heaviest first",
            diagnosis=BUSY,
            body="""
                copies = [1] * len(loads)
                for _ in range(slots - len(loads)):
                    copies[max(range(len(loads)), key=lambda expert: loads[expert] / copies[expert])] += 1
                order = sorted(range(len(loads)), key=lambda expert: -loads[expert] / copies[expert])
                dealt = [expert for expert in order for _ in range(copies[expert])]
                return [expert for rank in range(ranks) for expert in dealt[rank::ranks]]
                """,
        ),
        Wrong(
            "ranks have room for any number",
            diagnosis=BUSY,
            edits=(("            if len(found[rank]) < slots // ranks:\n                heapq", "            heapq"),),
        ),
        Wrong(
            "slots by share of the load: an expert with little gets none",
            diagnosis=r"expert \d+ has no slot: its tokens have nowhere to go",
            body="""
                total = sum(loads) or 1
                wanted = [load * slots / total for load in loads]
                copies = [int(each) for each in wanted]
                for expert in sorted(range(len(loads)), key=lambda e: copies[e] - wanted[e])[: slots - sum(copies)]:
                    copies[expert] += 1
                found = [expert for expert, count in enumerate(copies) for _ in range(count)]
                return found + [0] * (slots - len(found))
                """,
        ),
        Wrong(
            "a list for each rank",
            diagnosis=r"it must return a list with a whole number for each slot",
            edits=(("return [expert for own in found for expert in own]", "return found"),),
        ),
        Wrong(
            "all ranks are looked at for each slot",
            diagnosis=r"right, but it takes more than 2 s of processor time",
            edits=(
                (
                    "            load, rank = heapq.heappop(lightest)\n",
                    "            load, rank = min(lightest)\n            lightest.remove((load, rank))\n",
                ),
                ("heapq.heappush(lightest, (load + share, rank))", "lightest.append((load + share, rank))"),
            ),
        ),
        Wrong(
            "all experts are looked at for each slot",
            diagnosis=r"right, but it takes more than 2 s of processor time",
            edits=(
                (
                    "        expert = heaviest[0][1]\n        copies[expert] += 1\n"
                    "        heapq.heapreplace(heaviest, (-loads[expert] / copies[expert], expert))\n",
                    "        copies[max(range(len(loads)), key=lambda e: (loads[e] / copies[e], -e))] += 1\n",
                ),
            ),
        ),
    ),
)

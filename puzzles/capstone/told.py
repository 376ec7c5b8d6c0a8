"""The card in words: the engine with whose code is where, what holds, what it costs; and the table of records."""

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence

from .card import Card, Result
from .challenges import Entry
from .engines import MACHINES
from .seats import PARTS, SEATS, Seat

OWN, OTHERS, BLAMED = "■", "□", "✗"
HARD = "\0"  # a space at which no line ends
WIDE = 100


def mark(seat: Seat, card: Card) -> str:
    """Whose code is in a seat: ■ the learner's, □ the reference's, ✗ the learner's that is to blame."""
    puzzle = card.seats.get(seat.name)
    return OTHERS if puzzle is None else BLAMED if puzzle in card.blamed else OWN


def engine(card: Card) -> Iterator[str]:
    """The picture: a row for each part, with its seats."""
    yield f"THE ENGINE   {OWN} yours   {OTHERS} the reference's" + (f"   {BLAMED} to blame" if card.blamed else "")
    widest = max(map(len, PARTS))
    for part in PARTS:
        seats = [f"{mark(seat, card)} {seat.name}".replace(" ", HARD) for seat in SEATS if seat.part == part]
        for number, line in enumerate(textwrap.wrap("  ".join(seats), WIDE - widest - 5, break_long_words=False)):
            yield f"  {part if not number else '':<{widest}} │ {line.replace(HARD, ' ')}"


def whose(card: Card) -> Iterator[str]:
    """Which puzzle has which seat, and which seats wait for which."""
    yield f"{len(card.seats)} of {len(SEATS)} seats run your code:"
    for seat in SEATS:
        if seat.name in card.seats:
            puzzle = card.seats[seat.name]
            calls = f"{card.ran(puzzle):>5} x  " if card.costs else ""
            yield f"  {mark(seat, card)} {seat.name:<31} {puzzle:<40} {calls}{seat.place}"
    waiting = [seat for seat in SEATS if seat.name not in card.seats]
    if waiting:
        yield "the reference runs in:"
        for seat in waiting:
            yield f"  {OTHERS} {seat.name:<31} {seat.puzzles[0]}"
    for name, why in card.refused.items():
        yield f"  {name} has no seat: {why}"


def number(result: Result) -> str:
    """What was found, and the limit."""
    if result.found is None:
        return result.said
    return f"{result.found:.1e}, at most {result.limit:.0e}" if result.limit else f"{result.found:.1e}, must be 0"


def holds(card: Card) -> Iterator[str]:
    """A line for each control, and whom to blame."""
    right = sum(result.holds for result in card.results)
    yield f"CONTROLS   {right} of {len(card.results)} hold"
    for result in card.results:
        yield f"  {'holds' if result.holds else 'FAILS'}  {result.name:<60} {number(result)}"
        if not result.holds:
            names = ", ".join(result.blame) or "no piece alone, and no one without which it holds: several together"
            yield f"         to blame: {names}"


def ledger(card: Card) -> Iterator[str]:
    """Whether each sum holds each part once."""
    for engine, faults in card.ledger.items():
        for fault in faults:
            yield f"  {MACHINES[engine].title}: {fault}"
    clean = [engine for engine, faults in card.ledger.items() if not faults]
    yield f"LEDGER   each part of each sum once, in {len(clean)} of {len(card.ledger)} engines"


def costs(card: Card) -> Iterator[str]:
    """A step, by your code and by the reference's."""
    yield "A STEP                  bytes sent          calls           bytes alive          pace"
    yield "                     yours  reference   yours  ref.      yours  reference   of the reference's"
    for each in card.costs:
        yield (
            f"  {each.engine:<13} {each.bytes[0]:>10,} {each.bytes[1]:>10,} {each.calls[0]:>7} {each.calls[1]:>5} "
            f"{each.peak[0]:>10,} {each.peak[1]:>10,}   {each.pace:>8.2f}"
        )


def scale(card: Card) -> Iterator[str]:
    """64 modelled GPUs."""
    if card.scale:
        parts = ", ".join(f"{name} {value:.3f} s" for name, value in card.scale.items() if name not in ("tokens/s",))
        yield f"ON 64 H100s, Llama 3 8B in 8 stages and 8 replicas: {card.scale['tokens/s']:,.0f} tokens/s"
        yield f"  {parts}"


def lines(card: Card) -> Iterator[str]:
    """All of it."""
    yield from engine(card)
    yield ""
    yield from whose(card)
    yield ""
    yield from holds(card)
    yield ""
    yield from ledger(card)
    if card.costs:
        yield ""
        yield from costs(card)
        yield ""
        yield from scale(card)


def records(table: Sequence[Entry], others: Sequence[Entry] = ()) -> Iterator[str]:
    """The table, with what does not count below it."""
    yield "CHALLENGES   less is better; only rounded sums can be below the bound"
    for each in table:
        yield (
            f"  {each.challenge:<11} {each.who:<40} {each.value:>12.6g} {each.unit:<2} bound {each.bound:.6g}"
            f"   {each.value / each.bound:.2f} x"
        )
    for each in others:
        if each.value is None:
            yield f"  {each.challenge:<11} {each.who:<40} does not count: {each.why}"


def seats_of(seats: Mapping[str, str], blamed: Collection[str] = ()) -> dict[str, list[tuple[str, str]]]:
    """By part of the engine, whose code is in each seat: what `visualizations.engine` draws."""

    def whose(seat: Seat) -> str:
        puzzle = seats.get(seat.name)
        return "reference" if puzzle is None else "blamed" if puzzle in blamed else "own"

    return {part: [(seat.name, whose(seat)) for seat in SEATS if seat.part == part] for part in PARTS}

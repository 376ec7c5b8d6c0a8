"""decentralized.bytes_of_a_day: what a day of training sends over a slow link, and how much is left to compute."""

from fractions import Fraction

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.decentralized.answers.counted import bytes_of_a_day

DAY = 86_400.0


def round_by_round(case, inputs):
    """A clock that runs through one round, in fractions: a ring of 2(n-1) messages after the inner steps."""
    bits = Fraction(case.bits)
    chunk = Fraction(case.elements) * bits / 8 / case.islands
    sent = sum((chunk for _ in range(2 * (case.islands - 1))), Fraction(0))
    travels = 8 * sent / (Fraction(case.megabits) * 10**6)
    computes = Fraction(case.seconds) * case.inner_steps
    rounds = Fraction(case.duration) / (computes + travels)
    return [(float(rounds * sent), float(computes / (computes + travels)))]


PUZZLE = Puzzle(
    name="decentralized.bytes_of_a_day",
    title="The bytes of a day",
    statement="""
        Islands are joined by slow links. Each takes H inner steps and then meets the others by a ring
        all-reduce of all parameters, in which it does not compute; and so on, all day. How much does an island send,
        and for what share of the day does it compute? With 10 billion parameters and H = 1 the answer is sobering; with
        H = 100 and int8 it is INTELLECT-1.

        Count as if days had parts of rounds, and leave out latencies.

        Args:
            elements: parameters of the model.
            islands: n, 1 or more.
            inner_steps: H, of a round.
            seconds: of an inner step.
            bits: of each element in a message.
            megabits: of a link, 10^6 bits a second in each direction.
            duration: of training, in seconds: 86,400 for a day.

        Returns: (bytes that an island sends, the share of time in which it computes).

        Budget: a formula.
        """,
    function=bytes_of_a_day,
    cases=cases(
        worlds=(1,),
        elements=(10**10,),
        islands=(8, 4),
        inner_steps=(100, 1),
        seconds=(22.8,),
        bits=(8, 32),
        megabits=(100.0,),
        duration=(DAY,),
    )
    + cases(
        worlds=(1,),
        elements=(10**9,),
        islands=(1,),
        inner_steps=(50,),
        seconds=(1.5,),
        bits=(16,),
        megabits=(10.0,),
        duration=(3600.0,),
    ),
    drawn=(
        drawn(
            worlds=(1,),
            elements=(10**7, 3 * 10**9),
            islands=range(1, 20),
            inner_steps=range(1, 600),
            seconds=(0.5, 3.0),
            bits=(4, 8, 16, 32),
            megabits=(10.0, 350.0),
            duration=(DAY, 7 * DAY),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            elements=(10**10,),
            islands=(8,),
            inner_steps=(100,),
            seconds=(20.0,),
            bits=(8,),
            megabits=(100.0,),
            duration=(1e16,),
        ),
        "the seconds of training",
    ),
    oracle=round_by_round,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12,
            optimum=lambda case: 3,
            why="all rounds are alike: one is enough",
        ),
    ),
    hints=(
        "How many bytes does a rank send in a ring all-reduce of Ψ bytes? How long does a round take, with that?",
        "of_round = 2 (n-1)/n · elements · bits / 8. It takes 8 · of_round / (megabits · 10^6) seconds.",
        "In `duration` seconds there are duration / (computes + sends) rounds.",
    ),
    wrong=(
        Wrong(
            "each sends the whole model to each",
            diagnosis=r"expected",
            edits=(("2 * (islands - 1) / islands * elements", "(islands - 1) * elements"),),
        ),
        Wrong("bits for bytes", diagnosis=r"expected", edits=(("bits / 8", "bits"),)),
        Wrong("a link of megabytes", diagnosis=r"expected", edits=(("8 * of_round /", "of_round /"),)),
        Wrong(
            "the message takes no time",
            diagnosis=r"expected",
            edits=(("of_round * duration / (computes + sends)", "of_round * duration / computes"),),
        ),
        Wrong(
            "the share that sends",
            diagnosis=r"expected",
            edits=(("duration / (computes + sends), computes /", "duration / (computes + sends), sends /"),),
        ),
        Wrong(
            "round after round",
            diagnosis=r"right, but .*\n.*all rounds are alike|right, but|seconds",
            body="""
                of_round = 2 * (islands - 1) / islands * elements * bits / 8
                computes, sends = inner_steps * seconds, 8 * of_round / (megabits * 1e6)
                clock = sent = 0.0
                while clock + computes + sends <= duration:
                    clock += computes + sends
                    sent += of_round
                sent += of_round * (duration - clock) / (computes + sends)
                return sent, computes / (computes + sends)
                """,
        ),
    ),
)

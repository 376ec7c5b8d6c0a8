"""`make demo`: train on 4 ranks, prove that it equals one process, leave two pictures."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from rankwise import on_rank
from rankwise.loss_curve import draw as draw_losses
from rankwise.progress import following
from rankwise.training import usable
from reference.cluster import Cluster
from reference.collectives import all_reduce
from reference.models import GPT, create
from reference.models.data import Text, unigram_entropy
from reference.models.sample import continue_tokens
from reference.oracle import largest_difference, one_process, relative_difference
from reference.report import Step, read_log
from reference.trace import Trace
from reference.train import TrainConfig, all_reduce_gradients, batches_for
from visualizations.style import Picture
from visualizations.timeline import draw as draw_timeline

RANKS = 4
RING = partial(all_reduce_gradients, all_reduce=all_reduce.ring)
PROOF_STEPS = 10
TRACED_STEPS = 3
PROMPT = b"The statement "


@dataclass(frozen=True)
class Check:
    """A number that must stay below a bound."""

    what: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """False for NaN too."""
        return self.value <= self.bound


def run(out: Path) -> int:
    """Train, prove, draw.

    Args:
        out: a folder for the pictures and the log; made if need be.

    Returns:
        The exit code: 1 if the run did not equal one process, or learned too little.
    """
    console = Console(soft_wrap=True, highlight=False)
    config = TrainConfig(steps=300)
    text = batches_for(config, RANKS).text
    log = usable(out / "steps.jsonl")
    console.print(
        f"{RANKS} ranks of this machine train a GPT of {config.model.parameters:,} parameters on {len(text):,} bytes of "
        f"Python's documentation. After each step they sum their gradients by the ring of reference/collectives."
    )
    with Cluster(RANKS, timeout=None) as cluster:
        with following(log, config.steps, console):
            outcomes = cluster.run(on_rank.train, config, log, RING)
        steps, _ = read_log(log)
        show_learning(console, config, text, outcomes[0])
        checks = [learned(text, outcomes[0]), replicas(outcomes), *proof(cluster, config, steps)]
        show_checks(console, checks)
        _, trace = cluster.trace(on_rank.record, replace(config, stop_after=TRACED_STEPS), RING)
    losses = draw_losses(steps, outcomes[0].validation_loss, unigram_entropy(text))
    save_pictures(console, out, losses, draw_timeline(last_step(trace).timeline()))
    return 0 if all(check.holds for check in checks) else 1


def learned(text: Text, outcome: on_rank.Outcome) -> Check:
    """Is the held-out loss well below what letter frequencies alone would give?"""
    return Check("held-out loss over byte entropy", outcome.validation_loss / unigram_entropy(text), 0.75)


def replicas(outcomes: list[on_rank.Outcome]) -> Check:
    """Do all ranks hold the same model, bit by bit?"""
    others = len({outcome.fingerprint for outcome in outcomes}) - 1
    return Check(f"models on {len(outcomes)} ranks that differ in any bit", others, 0)


def proof(cluster: Cluster, config: TrainConfig, steps: list[Step]) -> list[Check]:
    """Take the first steps again in one process, which knows nothing of ranks, and compare.

    In float32 with the run that was just seen: both round, each in its own order. Then ranks and one process once
    more in float64, where rounding is too small to hide a mistake.
    """
    first = replace(config, stop_after=PROOF_STEPS)
    seen = [step.loss for step in steps[:PROOF_STEPS]]
    single = relative_difference(seen, one_process(first).losses)
    double = replace(first, dtype=torch.float64)
    exact = largest_difference(cluster.run(on_rank.record, double, RING)[0], one_process(double))
    return [
        Check(f"losses of the first {PROOF_STEPS} steps, as seen above", single, 1e-4),
        *(Check(f"{what} of {PROOF_STEPS} steps in float64", value, 1e-10) for what, value in exact.items()),
    ]


def show_learning(console: Console, config: TrainConfig, text: Text, outcome: on_rank.Outcome) -> None:
    """What was learned: two numbers, and a taste."""
    console.print(
        f"\nOn text that it has never read it pays {outcome.validation_loss:.2f} nats for a byte. "
        f"Who knows how frequent each byte is, and nothing else, pays {unigram_entropy(text):.2f}."
    )
    console.print(f"It writes: {write(config, outcome)!r}\n", markup=False)


def write(config: TrainConfig, outcome: on_rank.Outcome, more: int = 120) -> str:
    """What the trained model makes of the prompt."""
    model = create(GPT, config.model)
    model.load_state_dict(outcome.parameters)
    tokens = continue_tokens(model, torch.tensor(list(PROMPT)), more, window=config.sequence)
    return bytes(tokens.tolist()).decode(errors="replace")


def show_checks(console: Console, checks: list[Check]) -> None:
    """The proof as a table."""
    table = Table("N ranks against one process", "found", "may be", "", box=box.SIMPLE_HEAD)
    for check in checks:
        verdict = "[green]holds[/]" if check.holds else "[red]FAILS[/]"
        table.add_row(check.what, f"{check.value:.2g}", f"≤ {check.bound:g}", verdict)
    console.print(table)


def last_step(trace: Trace) -> Trace:
    """What the ranks said in the last of the traced steps, with times from its first word on."""
    calls = [events[-len(events) // TRACED_STEPS :] for events in trace.events]
    zero = min(events[0].begin for events in calls)
    shifted = (tuple(replace(e, begin=e.begin - zero, end=e.end and e.end - zero) for e in events) for events in calls)
    return Trace(trace.world_size, tuple(shifted))


def save_pictures(console: Console, out: Path, losses: Picture, messages: Picture) -> None:
    """Put the pictures where they can be looked at, and say where that is."""
    for name, what, picture in (
        ("loss.png", "what was learned", losses),
        ("ranks.png", "what the ranks said to each other in one step", messages),
    ):
        (out / name).write_bytes(picture.png())
        console.print(f"{out / name}: {what}")

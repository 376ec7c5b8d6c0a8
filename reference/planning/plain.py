"""What a step costs, on the back of an envelope: a dense GPT, one constant for all that is lost.

| what                 | formula                                   | because                                        |
|----------------------|-------------------------------------------|------------------------------------------------|
| FLOPs of a token     | 6 N + 12 L A s                            | a weight takes 2 forward and 4 backward;       |
|                      |                                           | attention 4 A for each pair, three times       |
| seconds of a step    | FLOPs / (n · peak · MFU)                  | it is not known where the rest goes            |
| bytes of a rank      | N / (t p) · (2 + 4 + 12), or 12/d of it   | bfloat16, float32 gradients, Adam; ZeRO-1      |
| bytes of activations | 34 T D L / t, of a pipeline's first rank  | 1F1B, sequence parallelism, flash attention    |

Letters: N parameters, L layers, D width, A width of all heads; n GPUs, t, p, d ranks of the tensor, pipeline and data
axes; s tokens of a window, T of a micro-batch. Kaplan et al. 2020 (arXiv:2001.08361), sec. 2.1, for 6 N; Chowdhery et
al. 2022 (arXiv:2204.02311), appendix B, for MFU; Rajbhandari et al. 2020 (arXiv:1910.02054) and Korthikanti et al.
2022 (arXiv:2205.05198) for the bytes.
"""

from reference.models.config import GPTConfig


def flops_per_token(model: GPTConfig, sequence: int) -> float:
    """Of forward and backward; the table of tokens is looked up and not multiplied."""
    multiplied = model.parameters - model.vocabulary * model.width * (not model.tied)
    return 6 * multiplied + 12 * model.layers * model.attended * sequence


def step_seconds(model: GPTConfig, sequence: int, batch: int, gpus: int, peak: float, mfu: float) -> float:
    """Of one step on `batch` windows.

    Args:
        model: a dense one.
        sequence: tokens of a window.
        batch: windows of a step.
        gpus: that share it.
        peak: FLOP per second of one.
        mfu: the part of it that is reached, from 0 to 1.
    """
    return batch * sequence * flops_per_token(model, sequence) / (gpus * peak * mfu)


def state_bytes(model: GPTConfig, tensor: int, pipeline: int, data: int = 1) -> float:
    """Parameters, gradients and Adam's state of a rank; the state in shards on `data` ranks."""
    return model.parameters / (tensor * pipeline) * (2 + 4 + 12 / data)


def activation_bytes(model: GPTConfig, tokens: int, tensor: int) -> float:
    """Of the first rank of a pipeline: it holds L / p layers of p micro-batches, of `tokens` tokens each."""
    return 34 / tensor * tokens * model.width * model.layers

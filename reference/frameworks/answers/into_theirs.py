"""A parameter of ours as Meta's own files of Llama have it: another name, and heads whose rows are in another order."""

from torch import Tensor

NAMES = {
    "embedding": "tok_embeddings",
    "norm": "norm",
    "head": "output",
    "attention_norm": "attention_norm",
    "attention.query": "attention.wq",
    "attention.key": "attention.wk",
    "attention.value": "attention.wv",
    "attention.output": "attention.wo",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.gate": "feed_forward.w1",
    "feed_forward.down": "feed_forward.w2",
    "feed_forward.up": "feed_forward.w3",
}


def into_theirs(name: str, tensor: Tensor, head_dim: int) -> tuple[str, Tensor]:
    """The name of a parameter in Meta's Llama, and its values there.

    Args:
        name: of ours, such as blocks.3.attention.query.weight.
        tensor: its values: of queries and keys [heads · head_dim, D].
        head_dim: d, an even number.

    Returns:
        Their name, such as layers.3.attention.wq.weight, and a tensor of the same shape. The rows of a head of queries
        or keys are pairs that rotary positions turn against each other: ours are i and i + d/2, theirs 2i and 2i + 1.
    """
    layer, _, path = name.rpartition("blocks.")[2].partition(".") if "blocks." in name else ("", "", name)
    module = path.removesuffix(".weight")
    theirs = f"{f'layers.{layer}.' if layer else ''}{NAMES[module]}.weight"
    if module not in ("attention.query", "attention.key"):
        return theirs, tensor
    halves = tensor.unflatten(0, (-1, 2, head_dim // 2))
    return theirs, halves.transpose(1, 2).flatten(0, 2)

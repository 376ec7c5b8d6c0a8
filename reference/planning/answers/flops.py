"""FLOPs that a step of training needs: two for each weight that a token meets, four for each pair of tokens, thrice.

A weight is multiplied and added: 2 FLOPs. Attention takes two products with each pair of tokens, scores and what they
weigh: 4 for each number of its width. Backward has two products for each of forward, for the input's gradient and for
the weight's. A table of tokens is looked up and multiplies nothing, and a token meets k of all experts.

`work.model_flops` has the same for a `Job`. Narayanan et al. 2021 (arXiv:2104.04473), sec. 5.1; Chowdhery et al. 2022
(arXiv:2204.02311), appendix B.
"""


def flops_of_a_step(
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    gated: bool,
    vocabulary: int,
    sequence: int,
    batch: int,
    experts: int,
    top_k: int,
    expert_hidden: int,
    shared_experts: int,
    dense_layers: int,
) -> int:
    """Model FLOPs of one step, of all ranks together: nothing is computed again, and no mask saves anything.

    Args:
        layers, width, heads, kv_heads, head_dim: of the model.
        hidden, gated: of a feed-forward without experts, and whether all of them have a gate.
        vocabulary: columns of the last product.
        sequence, batch: tokens of a window, windows of a step.
        experts: of a layer; 0 for a model without, where the other numbers of experts mean nothing.
        top_k, expert_hidden, shared_experts: experts of a token, features of one, and those that all tokens meet.
        dense_layers: the first so many layers have none.
    """
    with_experts = layers - dense_layers if experts else 0
    attention = 2 * width * (heads + kv_heads) * head_dim
    feature = (3 if gated else 2) * width
    met = layers * attention + vocabulary * width
    met += (layers - with_experts) * feature * hidden
    met += with_experts * feature * expert_hidden * (top_k + shared_experts)
    pairs = layers * 4 * sequence * heads * head_dim
    return 3 * (2 * met + pairs) * batch * sequence

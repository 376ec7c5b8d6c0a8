"""frameworks.checkpoint_into_theirs: names are easy, and the order of rows is not."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.frameworks.answers.into_theirs import into_theirs

NAMES = {
    "embedding": "tok_embeddings.weight",
    "norm": "norm.weight",
    "head": "output.weight",
    "blocks.0.attention_norm": "layers.0.attention_norm.weight",
    "blocks.3.attention.query": "layers.3.attention.wq.weight",
    "blocks.12.attention.key": "layers.12.attention.wk.weight",
    "blocks.3.attention.value": "layers.3.attention.wv.weight",
    "blocks.3.attention.output": "layers.3.attention.wo.weight",
    "blocks.0.feed_forward_norm": "layers.0.ffn_norm.weight",
    "blocks.31.feed_forward.gate": "layers.31.feed_forward.w1.weight",
    "blocks.31.feed_forward.up": "layers.31.feed_forward.w3.weight",
    "blocks.31.feed_forward.down": "layers.31.feed_forward.w2.weight",
}
ROTATED = ("query", "key")


def parameter(case, rank):
    """A tensor of the shape that the parameter has; [D] of a norm."""
    rows = case.heads * case.head_dim
    shape = (rows,) if case.of.endswith("norm") else (rows, case.width)
    return {"name": f"{case.of}.weight", "tensor": case.tensor(rank, *shape), "head_dim": case.head_dim}


def row_by_row(case, inputs):
    """Each row of a head where Meta's rotation looks for it."""
    tensor = inputs[0]["tensor"]
    if case.of.endswith(ROTATED):
        half, placed = case.head_dim // 2, torch.empty_like(tensor)
        for head in range(case.heads):
            for i in range(half):
                first = head * case.head_dim
                placed[first + 2 * i], placed[first + 2 * i + 1] = tensor[first + i], tensor[first + half + i]
        tensor = placed
    return [(NAMES[case.of], tensor)]


PUZZLE = Puzzle(
    name="frameworks.checkpoint_into_theirs",
    title="Our checkpoint into theirs",
    statement="""
        Our GPT is a Llama, so it should run in Meta's own program, from Meta's own files. Parameters have other names
        there:

            embedding, norm, head                      tok_embeddings, norm, output
            blocks.3.attention_norm                    layers.3.attention_norm
            blocks.3.attention.query, .key, .value     layers.3.attention.wq, .wk, .wv
            blocks.3.attention.output                  layers.3.attention.wo
            blocks.3.feed_forward_norm                 layers.3.ffn_norm
            blocks.3.feed_forward.gate, .down, .up     layers.3.feed_forward.w1, .w2, .w3

        each with .weight at the end. And one thing has another order. Rotary positions turn pairs of numbers of a head
        against each other, by angles that fall from pair to pair. In ours, as at Hugging Face, the i-th pair are the
        numbers i and i + d/2 of a head of d; in Meta's they are 2i and 2i + 1. What a head computes must stay the same.

        Args:
            name: of ours, such as "blocks.3.attention.query.weight".
            tensor: its values. Queries and keys are [heads · d, D]: the first d rows make the first head.
            head_dim: d, an even number.

        Returns: (their name, a tensor of the same shape).

        Budget: no more memory than one copy of the tensor, and none where nothing changes places.
        """,
    function=into_theirs,
    cases=cases(worlds=(1,), of=tuple(NAMES), heads=(3,), head_dim=(8,), width=(5,))
    + cases(
        worlds=(1,),
        of=("blocks.3.attention.query", "blocks.3.attention.value"),
        heads=(1, 4),
        head_dim=(2, 16),
        width=(7,),
    ),
    drawn=(drawn(worlds=(1,), of=tuple(NAMES), heads=range(1, 6), head_dim=(4, 6, 12), width=range(2, 9)),),
    large=case(1, of="blocks.3.attention.query", heads=32, head_dim=128, width=1500),
    inputs=parameter,
    oracle=row_by_row,
    tolerance=0,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: case.heads * case.head_dim * case.width * 8 if case.of.endswith(ROTATED) else 0,
            why="a view in which halves and pairs change places is copied once",
        ),
    ),
    hints=(
        "Which parameters make what rotary positions turn? Does it matter in which order the numbers of a value are?",
        "See the rows of one head as two halves of d/2 rows: [heads, 2, d/2, D]. Which two dims change places?",
        "`tensor.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)` for queries and keys.",
    ),
    wrong=(
        Wrong(
            "names alone",
            diagnosis=r"query.*result\[1\]",
            edits=(('if module not in ("attention.query", "attention.key"):', "if True:"),),
        ),
        Wrong(
            "the way back",
            diagnosis=r"query.*result\[1\]",
            edits=(("(-1, 2, head_dim // 2)", "(-1, head_dim // 2, 2)"),),
        ),
        Wrong(
            "values, too",
            diagnosis=r"value.*result\[1\]",
            edits=(
                ('("attention.query", "attention.key")', '("attention.query", "attention.key", "attention.value")'),
            ),
        ),
        Wrong(
            "all heads as one",
            diagnosis=r"result\[1\]",
            edits=(("(-1, 2, head_dim // 2)", "(1, 2, -1)"),),
        ),
        Wrong(
            "up and down the wrong way around",
            diagnosis=r"w2|w3",
            edits=(
                ('"feed_forward.down": "feed_forward.w2"', '"feed_forward.down": "feed_forward.w3"'),
                ('"feed_forward.up": "feed_forward.w3"', '"feed_forward.up": "feed_forward.w2"'),
            ),
        ),
        Wrong(
            "a copy of everything",
            diagnosis=r"right, but .*\n.*copied once",
            edits=(("        return theirs, tensor\n", "        return theirs, tensor.clone()\n"),),
        ),
    ),
)

"""The words that options of `rankwise train` take, known without torch: a slip of the finger is answered at once.

`tests/commands/test_help.py` holds these lists equal to what the reference knows.
"""

from collections.abc import Mapping
from types import MappingProxyType

from reference.errors import BadInput

MODELS = (
    "tiny",
    "demo",
    "small",
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "gemma-2b",
    "gemma-7b",
    "mistral-nemo-12b",
    "qwen2-0.5b",
    "qwen2-7b",
    "qwen2-72b",
)
WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "--data-parallel": ("naive", "flat", "ddp", "zero1", "zero2", "fsdp", "hsdp"),
        "--schedule": (
            "gpipe",
            "1f1b",
            "interleaved",
            "interleaved-even",
            "breadth-first",
            "zb-h1",
            "zb-h2",
            "zb-v",
            "1f1b-v",
            "v-half",
            "v-min",
            "dualpipev",
        ),
        "--recompute": ("none", "selective", "full"),
        "--precision": ("fp32", "tf32", "bf16", "fp16", "fp64"),
        "--offload": ("none", "cpu", "disk"),
        "--device": ("auto", "cpu", "cuda"),
    }
)


def listed(option: str) -> str:
    """All words of an option, for its help: "none, cpu or disk"."""
    *others, last = WORDS[option]
    return f"{', '.join(others)} or {last}"


def require_words(**chosen: str) -> None:
    """See that each word is one that its option takes: `require_words(data_parallel="ddp", model="tiny")`.

    Raises:
        BadInput: with the words that would do.
    """
    for name, word in chosen.items():
        option = f"--{name.replace('_', '-')}"
        if option == "--model" and word not in MODELS:
            raise BadInput(f"no model is called {word!r}; there are {', '.join(MODELS)}")
        if word not in WORDS.get(option, (word,)):
            raise BadInput(f"{option} is one of {', '.join(WORDS[option])}, not {word}")


def require_ranks(ranks: int) -> None:
    """Raises BadInput for a number of ranks that no cluster has."""
    from reference.cluster.cluster import MAX_RANKS  # no torch, and yet what other commands need not wait for

    if not 1 <= ranks <= MAX_RANKS:
        raise BadInput(f"--ranks is a number from 1 to {MAX_RANKS}, not {ranks}")

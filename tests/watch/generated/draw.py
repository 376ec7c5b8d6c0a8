"""What a generated program draws: names, sizes, ranks, groups, and lines that do something right with them."""

from dataclasses import dataclass, field
from random import Random

REDUCTIONS = ("SUM", "MAX", "MIN", "PRODUCT")
DTYPES = ("torch.float32", "torch.float64", "torch.int64", "torch.bfloat16")


@dataclass
class Draw:
    """Choices for one program of `n` ranks, all from one seed."""

    random: Random
    n: int
    _names: int = field(default=0)

    def name(self, stem: str) -> str:
        """A name that no other line uses."""
        self._names += 1
        return f"{stem}{self._names}"

    def size(self) -> int:
        """Elements of a tensor: a few, or more than a socket holds."""
        return self.random.choice((1, 2, 5, 16, 100, 4096, 300_000))

    def small(self) -> int:
        """Elements of a tensor of a few."""
        return self.random.choice((1, 2, 4, 7))

    def dtype(self) -> str:
        return self.random.choice(DTYPES)

    def rank(self) -> int:
        return self.random.randrange(self.n)

    def pair(self) -> tuple[int, int]:
        """Two different ranks."""
        a, b = self.random.sample(range(self.n), 2)
        return a, b

    def tag(self) -> int:
        return self.random.choice((0, 0, 0, 1, 7))

    def own_tag(self) -> int:
        """A tag that no other block uses."""
        self._names += 1
        return 100 + self._names

    def reduction(self) -> str:
        return self.random.choice(REDUCTIONS)

    def group(self) -> tuple[str, str]:
        """Lines that make a group of all ranks, and the argument that names it; mostly the world."""
        if self.random.random() < 0.7:
            return "", ""
        g = self.name("g")
        make = self.random.choice((f"{g} = dist.new_group()", f"{g} = dist.new_group(list(range(n)))"))
        return make + "\n", f", group={g}"

    def pause(self) -> str:
        """Nothing, or a moment that one rank is late."""
        if self.random.random() < 0.75:
            return ""
        return f"if rank == {self.rank()}:\n    time.sleep({self.random.choice((0.002, 0.01, 0.03))})\n"

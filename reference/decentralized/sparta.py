"""SPARTA: after each step islands average a few parameters, drawn anew each time, and never send which.

All islands draw from one seed, the step and the name of the parameter, so a message has the values and nothing else:
2 (n-1)/n · p · Ψ bytes a step, where p is the share. Sending a mask of bytes beside 4 · p bytes of values would cost
50 times as much at p = 0.005. (EXO Labs 2025, "SPARTA", in github.com/exo-explore/gym, where the mask is sent.)

Ranks of an island that hold the same part of a parameter draw the same elements of it, and stay equal.
"""

import zlib

import torch
from torch import Tensor

from reference.data_parallel.gradient_sync import ParameterShard

from .meeting import AfterStep, Meeting, fill, flat
from .wire import mean


class SparseAveraging(Meeting):
    """A share of all parameters."""

    def begin(self) -> None:
        """Nothing is kept: what is drawn follows from the step."""

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        if at.last:
            fill(self.masters, mean(flat(self.masters), self.across))
            return True
        drawn = [self.drawn(part, at.taken) for part in self.parts]
        values = [master.view(-1)[which] for master, which in zip(self.masters, drawn, strict=True)]
        means = mean(flat(values), self.across).split([len(each) for each in values])
        for master, which, value in zip(self.masters, drawn, means, strict=True):
            master.view(-1)[which] = value
        return True

    def drawn(self, part: ParameterShard, taken: int) -> Tensor:
        """Which elements of this rank's part of a parameter are averaged now."""
        name = zlib.crc32(f"{self.seed} {taken} {part.name} {part.begin}".encode())
        generator = torch.Generator().manual_seed(name)
        numel = part.master.numel()
        chosen = torch.rand(numel, generator=generator) < self.meets.sparse_share
        return chosen.nonzero().flatten().to(part.master.device)

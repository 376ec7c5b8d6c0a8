"""Elastic averaging: islands and a centre pull each other, and islands never become equal.

Zhang, Choromanska & LeCun 2015, "Deep learning with elastic averaging SGD", arXiv:1412.6651: the synchronous form.

    pull      x_i - centre
    island    x_i    -= β/n · pull
    centre    centre += β/n · the sum of all pulls

β is `elasticity`. A server that holds the centre would be asked by all at once; here each rank keeps it, and moves it
by an all-reduce of pulls: 2 (n-1)/n · Ψ / H bytes a step. What is learned is the centre, which islands take at the end.
"""

import torch

from .meeting import AfterStep, Meeting, fill, flat
from .wire import mean


class ElasticAveraging(Meeting):
    """All parameters, at the end of each round."""

    def begin(self) -> None:
        self.kept = {"centre": self.copies()}

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        own, centre = flat(self.masters), flat(self.kept["centre"])
        pull, strength = own - centre, self.meets.elasticity
        fill(self.masters, own - strength / self.across.size() * pull)
        centre += strength * mean(pull, self.across)
        fill(self.kept["centre"], centre)
        if at.last:
            fill(self.masters, centre)
        return True

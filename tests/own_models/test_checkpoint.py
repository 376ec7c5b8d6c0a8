"""A checkpoint takes parameters without elements, and parameters that stay whole, and gives them to another form."""

from pathlib import Path

import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.data_parallel import gather_full
from reference.memory.precision import PRECISIONS
from reference.zero import FullySharded, Sharded
from reference.zero.checkpoint import load, save

from .models import MODELS

TANGLED = MODELS["tied, frozen, unused, used twice"]


def there_and_back(folder: Path) -> bool:
    world, fp64 = dist.group.WORLD, PRECISIONS["fp64"]
    model = TANGLED.model()
    form = FullySharded(model, world, fp64, ignored=[model.blocks[0].weight])
    optimizer = torch.optim.AdamW([part.master for part in form.parts])
    with form.micro_batch(last=True):
        TANGLED.loss(model, 0, dist.get_rank(), 2).backward()
    form.reduce_gradients()
    optimizer.step()
    form.end_step()
    save(folder, form, optimizer, 1, {}, world)
    expected = gather_full(form)
    other = Sharded(TANGLED.model(), world, 2, fp64)
    load(folder, other, torch.optim.AdamW([part.master for part in other.parts]), world)
    found = gather_full(other)
    assert found["nothing"].shape == torch.Size([0, 3])
    return found.keys() == expected.keys() and all(torch.equal(found[name], x) for name, x in expected.items())


def test_what_is_empty_or_ignored_comes_back(two: Cluster, tmp_path: Path) -> None:
    assert two.run(there_and_back, tmp_path) == [True, True]

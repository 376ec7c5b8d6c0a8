"""A file of a checkpoint that is made once, and filled again and again, is the one that DCP would write."""

from io import BytesIO
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.storage import WriteResult

from reference.cluster import Cluster
from reference.data_parallel.gradient_sync import ParameterShard
from reference.resilience.file_image import FileImage, elements_in
from reference.zero.checkpoint_folder import Fingerprint
from reference.zero.checkpoint_write import plan_of, seal, write
from reference.zero.chunk import Chunk

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.bool)
Held = dict[str, tuple[ParameterShard, Tensor]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (2, 3, 7), (1000,)], ids=str)
def test_the_place_of_the_elements_is_found(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values, file = torch.randint(1, 100, shape).to(dtype), BytesIO()
    torch.save(values, file)
    archive = bytearray(file.getvalue())
    place = elements_in(bytes(archive))
    assert archive[place] == values.flatten().view(torch.uint8).numpy().tobytes()
    others = (values.float() + 1).to(dtype) if dtype is not torch.bool else ~values
    archive[place] = others.flatten().view(torch.uint8).numpy().tobytes()
    assert torch.equal(torch.load(BytesIO(archive)), others)  # whatever the archive's own checksum is


def held(draw: int) -> Held:
    """What one of two ranks has: a vector of which both have all, and a part of a matrix that is cut within a row."""
    torch.manual_seed(draw)
    vector, matrix = torch.randn(9), torch.randn(7, 3, dtype=torch.float64).flatten()
    begin, end = [(0, 10), (10, 21)][dist.get_rank()]
    return {
        "vector": (ParameterShard("vector", torch.Size([9]), 0, 9, nn.Parameter(vector)), vector),
        "matrix": (ParameterShard("matrix", torch.Size([7, 3]), begin, end, nn.Parameter(matrix)), matrix[begin:end]),
    }


def chunks_of(mine: Held) -> dict[str, Chunk]:
    return {name: Chunk(*each) for name, each in mine.items()}


def test_it_is_filled_again_and_again(two: Cluster, tmp_path: Path) -> None:
    """Made with some values, written with others. DCP puts the same boxes into the same places."""

    def files(folder: Path) -> list[tuple[bool, bool, list[bool]]]:
        plan, found = plan_of(chunks_of(held(0)), dist.group.WORLD), []
        image = FileImage(plan, chunks_of(held(0)))
        for draw in (1, 2):
            ours, dcps = folder / f"ours {draw}", folder / f"DCP's {draw}"
            for place in (ours, dcps) if dist.get_rank() == 0 else ():
                place.mkdir()
            dist.barrier()
            image.fill(held(draw))
            mine, theirs = image.write(ours), write(dcps, plan, chunks_of(held(draw)))
            fingerprints = {name: Fingerprint.of(ours / name) for name in theirs.files}
            same = [torch.equal(*(box(place / image.name, one) for place in (ours, dcps))) for one in mine.results]
            found.append((mine.files == fingerprints, mine.results == theirs.results, same))
        return found

    for of_rank in two.run(files, tmp_path):
        for has_its_fingerprint, has_its_places, same in of_rank:
            assert has_its_fingerprint and has_its_places and same and all(same)


def box(path: Path, one: WriteResult) -> Tensor:
    begin, length = one.storage_data.offset, one.storage_data.length
    return torch.load(BytesIO(path.read_bytes()[begin : begin + length]))


def test_a_rank_that_writes_nothing_has_an_empty_file(two: Cluster, tmp_path: Path) -> None:
    """Both have the same, so one of them writes it."""

    def sizes(folder: Path) -> int:
        mine = {"vector": held(0)["vector"]}
        image = FileImage(plan_of(chunks_of(mine), dist.group.WORLD), chunks_of(mine))
        image.fill(mine)
        ((name, fingerprint),) = image.write(folder).files.items()
        assert name == f"__{dist.get_rank()}_0.distcp"
        return fingerprint.size

    assert sorted(map(bool, two.run(sizes, tmp_path))) == [False, True]


def test_what_was_filled_in_is_loaded(two: Cluster, tmp_path: Path) -> None:
    """By torch's own reader, as whole tensors."""

    def saves(folder: Path) -> None:
        group = dist.group.WORLD
        plan = plan_of(chunks_of(held(0)), group)
        image = FileImage(plan, chunks_of(held(0)))
        if dist.get_rank() == 0:
            folder.mkdir()
        dist.barrier()
        image.fill(held(1))
        written = [None, None]
        dist.all_gather_object(written, image.write(folder))
        if dist.get_rank() == 0:
            seal(folder, plan, written, {"step": 1})

    two.run(saves, tmp_path / ".000001-partial")
    torch.manual_seed(1)
    vector, matrix = torch.randn(9), torch.randn(7, 3, dtype=torch.float64)
    loaded = {"vector": torch.zeros(9), "matrix": torch.zeros(7, 3, dtype=torch.float64)}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(tmp_path / "000001-step-1"), no_dist=True)
    assert torch.equal(loaded["vector"], vector) and torch.equal(loaded["matrix"], matrix)

"""What islands send, from the trace: the formula, and not one byte more between the meetings."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reference.choices import Aggregation, GossipTopology, Outer, Wire
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.decentralized.aggregation import RULES
from reference.decentralized.robust import robust_bytes
from reference.decentralized.secure_sum import WORDS, masked_bytes
from reference.decentralized.wire import wire_bytes
from reference.plan import DataParallelism, Plan
from reference.saves import Saves
from reference.trace import Op
from reference.train import Training, train

from .one_process import ENDS, config_of

ROUNDS, H, DOUBLE = 2, 3, 8


def some_rounds(config: TrainConfig, plan: Plan = Plan()) -> list[int]:  # noqa: B008
    """Two rounds that end before the run does. Returns the numbers of this rank's masters."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    dist.barrier()
    for step in range(ROUNDS * H):
        training.backward(step)
        training.update(step)
    dist.barrier()
    return [part.master.numel() for part in training.form.parts]


def sent(cluster: Cluster, config: TrainConfig) -> tuple[int, int]:
    """Bytes that the busiest rank sends in two rounds, and the elements that it has."""
    numels, trace = cluster.trace(some_rounds, replace(config, steps=100, inner_steps=H))
    assert {event.op for events in trace.events for event in events} >= {Op.BARRIER}
    return max(trace.bytes_sent), sum(numels[0])


@pytest.mark.parametrize("islands", [2, 4])
def test_diloco_sends_a_sum_of_all_parameters_each_round(four: Cluster, islands: int) -> None:
    """Ranks of islands of one send nothing else. With two ranks in each, gradients are summed inside at each step."""
    found, numel = sent(four, config_of(Outer.DILOCO, islands))
    inside = 0 if islands == 4 else 2 * 1 / 2 * numel * DOUBLE * H * ROUNDS
    assert found == pytest.approx(ROUNDS * wire_bytes(numel, islands, Wire.FULL, DOUBLE) + inside, rel=2e-3)


@pytest.mark.parametrize(("outer", "times"), [(Outer.FEDADAM, 1), (Outer.FEDPROX, 1), (Outer.SCAFFOLD, 2)])
def test_clients_send_their_change_and_those_of_scaffold_their_control_too(
    four: Cluster, outer: Outer, times: int
) -> None:
    found, numel = sent(four, config_of(outer, 4))
    assert found == pytest.approx(times * ROUNDS * wire_bytes(numel, 4, Wire.FULL, DOUBLE), rel=2e-3)


def test_few_bits_are_few_bytes(four: Cluster) -> None:
    for wire, fewer in ((Wire.BF16, 3.8), (Wire.INT8, 7.6), (Wire.INT4, 15)):
        found, numel = sent(four, config_of(Outer.DILOCO, 4, wire=wire))
        assert found == pytest.approx(ROUNDS * wire_bytes(numel, 4, wire), rel=2e-3)
        assert wire_bytes(numel, 4, Wire.FULL, DOUBLE) / wire_bytes(numel, 4, wire) > fewer


@pytest.mark.parametrize("word", [word for word in Aggregation if word is not Aggregation.MEAN])
def test_rules_that_stand_liars_send_chunks_and_krum_all(four: Cluster, word: Aggregation) -> None:
    found, numel = sent(four, config_of(Outer.DILOCO, 4, aggregation=word, liars=0))
    assert found == pytest.approx(ROUNDS * robust_bytes(RULES[word], numel, 4, DOUBLE), rel=2e-3)


def test_a_secure_sum_sends_eight_bytes_a_number_and_keys_once(four: Cluster) -> None:
    found, numel = sent(four, config_of(Outer.DILOCO, 4, secure_sum=True))
    keys = 2 * 4 * WORDS * 8  # of four islands, by recursive doubling
    assert found == pytest.approx(ROUNDS * masked_bytes(numel, 4, 4) + keys, rel=1e-3)


@pytest.mark.parametrize("plan", [Plan(DataParallelism.FSDP), Plan(tensor_parallel=2)], ids=["fsdp", "tensor"])
def test_noise_is_not_sent_and_a_norm_is_one_number(four: Cluster, plan: Plan) -> None:
    plain, private = config_of(Outer.DILOCO, 2), config_of(Outer.DILOCO, 2, clip_change=1.0)
    totals = [sum(four.trace(some_rounds, replace(each, steps=100), plan)[1].bytes_sent) for each in (plain, private)]
    norm, secret = 4 * DOUBLE * ROUNDS, 2 * 8  # of each rank to the other one of its island; from rank 0 to three
    assert totals[1] - totals[0] == norm + 3 * secret


def test_no_mask_travels(four: Cluster) -> None:
    """SPARTA sends the values of what is drawn; a mask of bytes alone would be five times as much."""
    found, numel = sent(four, config_of(Outer.SPARTA, 4, sparse_share=0.02))
    assert found == pytest.approx(ROUNDS * 2 * 3 / 4 * 0.02 * numel * DOUBLE, rel=0.15)


def test_pairs_send_to_one_partner_alone(four: Cluster) -> None:
    _, trace = four.trace(some_rounds, config_of(Outer.NOLOCO, 4, steps=100, inner_steps=H))
    pairs = [{(m.src, m.dst) for m in trace.messages if m.src == rank and m.bytes > 1 << 16} for rank in range(4)]
    assert all(1 <= len(found) <= ROUNDS for found in pairs)
    numel = sum(four.run(some_rounds, config_of(Outer.NOLOCO, 4, steps=100, inner_steps=H))[0])
    assert max(trace.bytes_sent) == pytest.approx(ROUNDS * 2 * numel * DOUBLE, rel=2e-3)


NEIGHBOURS = {GossipTopology.RING: 2, GossipTopology.TORUS: 2, GossipTopology.EXPONENTIAL: 3}  # of 4; of others 1


@pytest.mark.parametrize("topology", GossipTopology)
def test_gossip_sends_all_parameters_to_each_neighbour_and_to_no_other(four: Cluster, topology: GossipTopology) -> None:
    """After each of the rounds, for the next one, and nothing before the first: islands are equal then."""
    found, numel = sent(four, config_of(Outer.GOSSIP, 4, topology=topology))
    assert found == pytest.approx(ROUNDS * NEIGHBOURS.get(topology, 1) * numel * DOUBLE, rel=2e-3)


def saved_run(config: TrainConfig, folder: str) -> None:
    """As the command trains."""
    train(config, dist.group.WORLD, torch.device("cpu"), Plan(), saves=Saves(Path(folder), every=100))


def test_islands_ask_each_other_whether_to_stop_only_when_they_meet(four: Cluster, tmp_path: Path) -> None:
    """Else a run that saves would wait for the link, and for the slowest island, in each step."""
    asked = []
    for outer in (Outer.LOCAL_SGD, Outer.ASYNC_DILOCO):
        _, trace = four.trace(saved_run, config_of(outer, 4), str(tmp_path / outer))
        asked.append(
            sum(event.op is Op.ALL_REDUCE and len(event.group) == 4 and event.bytes <= 64 for event in trace.events[1])
        )
    assert asked == [len(ENDS), 1]

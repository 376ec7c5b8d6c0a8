"""Whose sums are whose: what each axis is to each number of a step, from specs and from no run.

    R   replicas: all ranks along the axis have the same, and it counts once
    S   split: each has other elements, or other layers, and there is nothing to sum
    P   parts: each has found a part, and the parts are summed

A gradient has parts along the axes of the batch, and along those of its spec's `partial`. Losses have parts wherever
ranks read other tokens or have other stages. Squares of a norm have parts where elements are split. Counts of a router
have parts wherever other tokens are routed, and that is along the tensor axes, too.
"""

from collections.abc import Mapping
from enum import StrEnum

from reference.mesh import EXPERT_GRADIENTS, GRADIENTS, TENSOR, Mesh
from reference.models import ModelConfig, architecture, create
from reference.models.layout import SplitExperts, split_of
from reference.parallelize import spec_in_plan
from reference.plan import Plan
from reference.sharding import Spec


class Role(StrEnum):
    """What an axis is to a number."""

    REPLICAS = "R"
    SPLIT = "S"
    PARTS = "P"


Row = Mapping[str, Role]
"""By axis; those of the other view of the ranks are not there."""


def roles(config: ModelConfig, plan: Plan, ranks: int) -> Mapping[str, Row]:
    """A row for each kind of number, by axis: of a plan, on so many ranks."""
    mesh = plan.mesh(ranks, config)
    experts = plan.expert_mesh(ranks, config) if config.experts else None
    found: dict[str, Row] = {}
    for name, _ in create(architecture, config, device="meta").named_parameters():
        is_expert = isinstance(split_of(name, config.layout), SplitExperts)
        spec = spec_in_plan(name, config, plan)
        row = of_gradient(spec, experts, EXPERT_GRADIENTS) if is_expert else of_gradient(spec, mesh, GRADIENTS)
        found[f"gradient: {kind_of(name)}"] = row
    parts, same, split = Role.PARTS, Role.REPLICAS, Role.SPLIT
    found["loss"] = {axis: same if axis in TENSOR else parts for axis in mesh.names}
    found["norm"] = {axis: parts if axis in plan.split_axes else same for axis in mesh.names}
    if experts:
        in_view = {"pp", "ep", "etp", *plan.expert_shard_axes}
        found["norm: experts"] = {axis: parts if axis in in_view else same for axis in experts.names}
        found["router counts"] = {axis: split if axis == "pp" else parts for axis in mesh.names}
    return found


def of_gradient(spec: Spec, mesh: Mesh, batch: tuple[str, ...]) -> Row:
    """What each axis is to a gradient.

    Args:
        spec: of the parameter.
        mesh: that it is split on.
        batch: axes along which ranks that hold the same of it read other tokens.
    """
    partial = {"pp" if axis == "pp_ends" else axis for axis in spec.partial}  # a tied table is at both ends

    def role(axis: str) -> Role:
        if axis in batch or axis in partial:
            return Role.PARTS
        return Role.SPLIT if axis in spec.split else Role.REPLICAS

    return {axis: role(axis) for axis in mesh.names}


def kind_of(name: str) -> str:
    """Parameters of one kind are treated alike: the kind of one, by its name."""
    words = name.split(".")
    if name.endswith("norm.weight"):
        return "norms"
    for part, kind in {"experts": "experts", "shared": "shared experts", "router": "router"}.items():
        if part in words:
            return kind
    if "attention" in words:
        return "keys and values" if {"key", "value"} & set(words) else "queries, output"
    return "feed-forward" if "feed_forward" in words else words[0]

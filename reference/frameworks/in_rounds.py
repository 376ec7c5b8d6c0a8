"""The run of those who train by themselves for some steps, and then meet: islands, and clients, in one process."""

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from reference.decentralized.plain import nesterov
from reference.decentralized.plain_unscheduled import federated

if TYPE_CHECKING:
    from reference.frameworks.plain import Course


def islands(course: "Course", rate: float, momentum: float) -> list[float]:
    """DiLoCo, as `reference.decentralized.plain` has it, of islands side by side: their mean loss in each step."""
    models = [course.model() for _ in range(course.islands)]
    optimizers = [course.optimizer(model.parameters()) for model in models]
    anchors = [parameter.detach().clone() for parameter in models[0].parameters()]
    velocities, losses = [torch.zeros_like(anchor) for anchor in anchors], []
    for step in range(course.steps):
        found = []
        for island, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            tokens, targets = course.read(step, island, course.islands)
            optimizer.zero_grad()
            loss = course.loss(model(tokens), targets)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(fmean(found))
        if (step + 1) % course.inner_steps == 0:
            with torch.no_grad():
                for anchor, velocity, *own in zip(anchors, velocities, *(m.parameters() for m in models), strict=True):
                    nesterov(anchor, anchor - sum(own) / len(own), velocity, rate, momentum)
                    for parameter in own:
                        parameter.copy_(anchor)
    return losses


def clients(course: "Course") -> list[float]:
    """FedAvg, as `reference.decentralized.plain_unscheduled` has it: the mean loss of all clients in each step.

    In each round a client begins with the mean of all, and with an optimizer that remembers nothing.
    """
    losses: list[list[float]] = [[] for _ in course.clients]

    def train(begin: int, client: int, weights: Tensor) -> Tensor:
        model = course.model()
        vector_to_parameters(weights.clone(), model.parameters())
        optimizer = course.optimizer(model.parameters())
        for step in range(begin, min(begin + course.inner_steps, course.steps)):
            tokens, targets = course.of_client(step, client)
            optimizer.zero_grad()
            loss = course.loss(model(tokens), targets)
            loss.backward()
            optimizer.step()
            losses[client].append(loss.item())
        return parameters_to_vector(model.parameters()).detach()

    weights = parameters_to_vector(course.model().parameters()).detach()
    for begin in range(0, course.steps, course.inner_steps):
        weights = federated(weights, partial(train, begin), course.clients)
    return [fmean(each) for each in zip(*losses, strict=True)]

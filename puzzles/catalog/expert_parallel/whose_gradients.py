"""expert_parallel.whose_gradients: replicas of a router and of an expert are not on the same ranks."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.expert_routing import with_groups_of_experts
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, divisors, drawn
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.expert_parallel.answers.gradients import sum_gradients

DOUBLE, WIDTH, TOKENS = 8, 2, 3


def tokens_of(case, rank):
    """A rank's tokens, and what should come out."""
    return case.normal(rank, TOKENS, WIDTH, name="x"), case.normal(rank, TOKENS, WIDTH, name="target")


def weights_of(case):
    """The router [E, D], and the matrices of all experts [E, D, D]."""
    experts = case.ep * case.local
    return case.normal(0, experts, WIDTH, name="router"), case.normal(0, experts, WIDTH, WIDTH, name="experts")


def loss(x, target, router, experts):
    """Of a mixture in which the best expert of a token computes, a mean over tokens."""
    shares = (x @ router.T).softmax(-1)
    best = shares.argmax(-1)
    made = torch.einsum("tij,tj->ti", experts[best], x).tanh() * shares.gather(1, best[:, None])
    return (made - target).square().sum() / len(x)


def gradients(case, *tokens):
    """Of the mean loss of these tokens: of the router, and of all experts."""
    leaves = [each.requires_grad_() for each in weights_of(case)]
    return torch.autograd.grad(loss(*tokens, *leaves), leaves)


def own_experts(case, rank):
    """Those of a rank, which lie in a row."""
    first = rank % case.ep * case.local
    return slice(first, first + case.local)


def after_backward(case, rank):
    """What is on a rank after backward from its own loss: its experts have met tokens of all ranks of their group."""
    group = range(rank // case.ep * case.ep, (rank // case.ep + 1) * case.ep)
    found = [gradients(case, *tokens_of(case, each))[1][own_experts(case, rank)] for each in group]
    router = gradients(case, *tokens_of(case, rank))[0]
    return {"router": router, "experts": torch.stack(found).sum(0), "ranks_of_experts": case.ep}


def one_process_with_all_tokens(case, inputs):
    """The gradients of the mean over all tokens, of which each rank has the router's, and those of its experts."""
    everything = zip(*(tokens_of(case, rank) for rank in range(case.n)), strict=True)
    router, experts = gradients(case, *(torch.cat(each) for each in everything))
    return [{"router": router, "experts": experts[own_experts(case, rank)]} for rank in range(case.n)]


def sent(case):
    """Bytes of an all-reduce of the router over all ranks, and one of the experts over those that have them."""
    router, experts = case.ep * case.local * WIDTH, case.local * WIDTH**2
    return cost.of(ring).most(case.n, router, DOUBLE) + cost.of(ring).most(case.n // case.ep, experts, DOUBLE)


EXPERTS = r"experts\[\d, \d, \d\]: expected -?[\d.e-]+, got -?[\d.e-]+"
ROUTER = r"router\[\d, \d\]: expected -?[\d.e-]+, got -?[\d.e-]+"

PUZZLE = Puzzle(
    name="expert_parallel.whose_gradients",
    title="Whose gradients are summed, and divided by what",
    statement="""
        n ranks read different tokens, as many each. Each has a replica of the router. Experts are shared out over ep
        ranks that are neighbours; the next ep ranks have replicas of all these experts again, and so on: an expert is
        on n / ep ranks. In forward a token goes to the rank of its own ep neighbours that has its expert.

            ranks 0 1 2 3, ep = 2      rank 0: experts 0, 1     rank 1: experts 2, 3
                                       rank 2: experts 0, 1     rank 3: experts 2, 3

        The loss of a step is the mean over all tokens of all ranks. In backward each rank begins with the mean over its
        own tokens, and gradients travel back the way that tokens came. What has a rank found then for its router, and
        what for its experts? Which ranks found the rest of each, and by what is each sum to be divided?

        Args:
            router: gradient of the router, as backward left it on this rank. To be made that of the loss of the step,
                in place.
            experts: gradients of this rank's experts, likewise.
            ep: the group of this rank and its neighbours that have all experts together.
            edp: the group of the ranks that have the same experts as this one.
            group: all n ranks. Any n.

        Budget: two all-reduces, and no gradient goes to a rank that has no use for it.
        """,
    function=sum_gradients,
    cases=cases(worlds=(4,), ep=(2,), local=(2,))
    + cases(worlds=(6,), ep=(3,), local=(2,))
    + cases(worlds=(3,), ep=(1, 3), local=(1,))
    + cases(worlds=(2,), ep=(2,), local=(1,))
    + cases(worlds=(1,), ep=(1,), local=(3,))
    + cases(worlds=(8,), ep=(4,), local=(1,))
    + cases(worlds=(5,), members=(0, 1, 3, 4), ep=(2,), local=(1,)),
    drawn=(drawn(worlds=(4, 6, 6), ep=lambda so_far: divisors(so_far.n), local=(1, 2, 3)),),
    inputs=after_backward,
    oracle=one_process_with_all_tokens,
    drive=with_groups_of_experts,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(Measure.CALLS, target=lambda case: 2, why="one all-reduce for the router, and one for the experts"),
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="gradients of an expert are for the ranks that have it: sum them over these alone",
        ),
    ),
    hints=(
        "Write the loss down as a sum over tokens, each divided by how many there are on all ranks. Each rank divided "
        "by its own T. What is missing in each gradient: for a router, and for an expert?",
        "In backward an expert got the gradients of all tokens that it met: those of ep ranks. So the sum over these "
        "is there already. Which ranks' tokens has it not met? A router has met those of its own rank alone.",
        "Sum the router's over `group` and the experts' over `edp`. Both then hold each of the n ranks' tokens once, "
        "each divided by T where n T is right: so divide both by n.",
    ),
    wrong=(
        Wrong(
            "experts are averaged over the ranks that have them: ep times too much",
            diagnosis=r"off by a factor of 2 everywhere|" + EXPERTS,
            edits=(("        gradient /= n\n", "        gradient /= dist.get_world_size(replicas)\n"),),
        ),
        Wrong(
            "experts are divided by the other number of ranks",
            diagnosis=EXPERTS,
            edits=(
                (
                    "        gradient /= n\n",
                    "        gradient /= n if gradient is router else dist.get_world_size(ep)\n",
                ),
            ),
        ),
        Wrong(
            "experts are divided by n and by the ranks that have them",
            diagnosis=EXPERTS,
            edits=(
                (
                    "        gradient /= n\n",
                    "        gradient /= n\n    experts /= dist.get_world_size(edp)\n",
                ),
            ),
        ),
        Wrong(
            "experts are summed like all else: those of other ranks are other experts",
            diagnosis=EXPERTS,
            edits=(("(experts, edp)", "(experts, group)"),),
        ),
        Wrong(
            "experts are summed over the ranks that have the others",
            diagnosis=EXPERTS,
            edits=(("(experts, edp)", "(experts, ep)"),),
        ),
        Wrong(
            "experts have met all tokens already",
            diagnosis=EXPERTS,
            edits=(
                (
                    "        dist.all_reduce(gradient, group=replicas)\n",
                    "        if gradient is router:\n            dist.all_reduce(gradient, group=replicas)\n",
                ),
            ),
        ),
        Wrong(
            "the router is summed like the experts",
            diagnosis=ROUTER,
            edits=(("(router, group)", "(router, edp)"),),
        ),
        Wrong(
            "the router is summed over the ranks that exchange tokens",
            diagnosis=ROUTER,
            edits=(("(router, group)", "(router, ep)"),),
        ),
        Wrong(
            "summed, and not divided",
            diagnosis=r"off by exactly the world size, too much|" + ROUTER,
            edits=(("        gradient /= n\n", ""),),
        ),
        Wrong(
            "only the router is divided",
            diagnosis=EXPERTS,
            edits=(("        gradient /= n\n", "    router /= n\n"),),
        ),
        Wrong(
            "all experts to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*over these alone",
            body="""
                n = dist.get_world_size(group)
                dist.all_reduce(router, group=group)
                router /= n
                everything = torch.zeros(dist.get_world_size(ep), *experts.shape, dtype=experts.dtype)
                everything[dist.get_rank(ep)] = experts
                dist.all_reduce(everything, group=group)
                experts.copy_(everything[dist.get_rank(ep)] / n)
                """,
        ),
        Wrong(
            "one expert after another",
            diagnosis=r"right, but a rank makes \d calls where 2 must do.*\n.*one all-reduce for the router",
            edits=(("(experts, edp)", "*((expert, edp) for expert in experts)"),),
        ),
    ),
)

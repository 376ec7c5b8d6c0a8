"""Blocks of wrong programs, by kind, after the MPI Bugs Initiative (Laurent, Saillard & Quinson 2021).

Each is wrong in every run, whatever the scheduler does, and says which errors name it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.watch.generated.draw import Draw


@dataclass(frozen=True)
class Wrong:
    """A block with a mistake."""

    kind: str
    errors: frozenset[str]  # classes of reference.cluster.errors
    lines: Callable[[Draw], str]
    least: int = 2  # ranks it needs

    @property
    def name(self) -> str:
        return self.lines.__name__


WRONG: list[Wrong] = []


def wrong(kind: str, *errors: str, least: int = 2) -> Callable[[Callable[[Draw], str]], Callable[[Draw], str]]:
    """Put a block among the wrong ones."""

    def put(lines: Callable[[Draw], str]) -> Callable[[Draw], str]:
        WRONG.append(Wrong(kind, frozenset(errors), lines, least))
        return lines

    return put


def collective(d: Draw, x: str, group: str = "") -> str:
    """A collective of one tensor on all ranks."""
    return d.random.choice(
        (
            f"dist.all_reduce({x}{group})",
            f"dist.broadcast({x}, src={d.rank()}{group})",
            f"dist.reduce({x}, dst={d.rank()}{group})",
            f"dist.all_gather([torch.empty_like({x}) for _ in range(n)], {x}{group})",
            f"dist.barrier({group[2:]})",
        )
    )


# Deadlocks.


@wrong("deadlock", "DeadlockError")
def all_receive_first(d: Draw) -> str:
    (a, b), x, tag = d.pair(), d.name("x"), d.tag()
    return (
        f"{x} = torch.ones({d.size()})\nif rank in ({a}, {b}):\n    peer = {a} + {b} - rank\n"
        f"    dist.recv({x}, src=peer, tag={tag})\n    dist.send({x}, dst=peer, tag={tag})\n"
    )


@wrong("deadlock", "DeadlockError")
def a_ring_that_sends_first(d: Draw) -> str:
    x, y, size = d.name("x"), d.name("y"), d.size()
    return (
        f"{x}, {y} = torch.ones({size}), torch.ones({size})\ndist.send({x}, dst=(rank + 1) % n)\n"
        f"dist.recv({y}, src=(rank - 1) % n)\n"
    )


@wrong("deadlock", "DeadlockError")
def a_request_waited_for_too_early(d: Draw) -> str:
    (a, b), x, y = d.pair(), d.name("x"), d.name("y")
    end = d.random.choice((f"{y}.wait()", f"while not {y}.is_completed():\n        pass"))
    return (
        f"{x} = torch.ones({d.size()})\nif rank in ({a}, {b}):\n    peer = {a} + {b} - rank\n"
        f"    {y} = dist.irecv(torch.empty_like({x}), src=peer)\n    {end}\n    dist.send({x}, dst=peer)\n"
    )


@wrong("deadlock", "DeadlockError", "MismatchError")
def a_collective_crosses_a_message(d: Draw) -> str:
    (a, b), x = d.pair(), d.name("x")
    call = collective(d, x)
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.recv({x}, src={b})\n    {call}\n"
        f"else:\n    {call}\n    if rank == {b}:\n        dist.send({x}, dst={a})\n"
    )


@wrong("deadlock", "DeadlockError", "MismatchError", "GroupError")
def one_rank_leaves_a_collective_out(d: Draw) -> str:
    x = d.name("x")
    return f"{x} = torch.ones({d.size()})\nif rank != {d.rank()}:\n    {collective(d, x)}\n"


@wrong("deadlock", "DeadlockError", "MismatchError", "GroupError")
def one_rank_goes_round_once_more(d: Draw) -> str:
    x, odd = d.name("x"), d.rank()
    return f"{x} = torch.ones({d.small()})\nfor _ in range(3 + (rank == {odd})):\n    dist.all_reduce({x})\n"


@wrong("deadlock", "DeadlockError", "MismatchError")
def nobody_sends(d: Draw) -> str:
    (a, b), x = d.pair(), d.name("x")
    call = d.random.choice((f"dist.recv({x}, src={b})", f"dist.irecv({x}, src={b}).wait()", f"dist.recv({x})"))
    return f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    {call}\n"


@wrong("deadlock", "DeadlockError", "MismatchError")
def nobody_receives(d: Draw) -> str:
    (a, b), x = d.pair(), d.name("x")
    call = d.random.choice((f"dist.send({x}, dst={b})", f"dist.isend({x}, dst={b}).wait()"))
    return f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    {call}\n"


@wrong("deadlock", "DeadlockError")
def groups_in_crossed_order(d: Draw) -> str:
    g, h, x, odd = d.name("g"), d.name("h"), d.name("x"), d.rank()
    return (
        f"{g}, {h}, {x} = dist.new_group(), dist.new_group(), torch.ones({d.size()})\n"
        f"for group in ({g}, {h}) if rank == {odd} else ({h}, {g}):\n    dist.all_reduce({x}, group=group)\n"
    )


# Calls that do not fit.


@wrong("mismatch", "MismatchError", "DeadlockError")
def tags_that_differ(d: Draw) -> str:
    (a, b), x, tag = d.pair(), d.name("x"), d.tag()
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.send({x}, dst={b}, tag={tag})\n"
        f"elif rank == {b}:\n    dist.recv({x}, src={a}, tag={tag + 1})\n"
    )


@wrong("mismatch", "MismatchError")
def sizes_of_a_message(d: Draw) -> str:
    (a, b), x, size = d.pair(), d.name("x"), d.size()
    more, less = d.random.choice(((size + 1, size), (size, size + 1)))
    return (
        f"if rank == {a}:\n    dist.send(torch.ones({more}), dst={b})\n"
        f"elif rank == {b}:\n    {x} = torch.ones({less})\n    dist.recv({x}, src={a})\n"
    )


@wrong("mismatch", "MismatchError")
def dtypes_of_a_message(d: Draw) -> str:
    (a, b), size = d.pair(), d.size()
    one, other = d.random.choice((("float32", "int32"), ("float64", "float32"), ("bfloat16", "float16")))
    return (
        f"if rank == {a}:\n    dist.send(torch.ones({size}, dtype=torch.{one}), dst={b})\n"
        f"elif rank == {b}:\n    dist.irecv(torch.ones({size}, dtype=torch.{other}), src={a}).wait()\n"
    )


@wrong("mismatch", "MismatchError")
def different_collectives(d: Draw) -> str:
    x, odd = d.name("x"), d.rank()
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {odd}:\n    dist.all_reduce({x})\n"
        f"else:\n    dist.broadcast({x}, src={d.rank()})\n"
    )


@wrong("mismatch", "MismatchError")
def roots_that_differ(d: Draw) -> str:
    x, odd = d.name("x"), d.rank()
    call = d.random.choice(("dist.broadcast({x}, src={root})", "dist.reduce({x}, dst={root})")).format
    root = f"({(odd + 1) % d.n} if rank == {odd} else {odd})"
    return f"{x} = torch.ones({d.size()})\n{call(x=x, root=root)}\n"


@wrong("mismatch", "MismatchError")
def reductions_that_differ(d: Draw) -> str:
    x, odd = d.name("x"), d.rank()
    op = f"dist.ReduceOp.MAX if rank == {odd} else dist.ReduceOp.SUM"
    call = d.random.choice((f"dist.all_reduce({x}, op={op})", f"dist.reduce({x}, dst=0, op={op})"))
    return f"{x} = torch.ones({d.size()})\n{call}\n"


@wrong("mismatch", "MismatchError")
def shapes_that_differ(d: Draw) -> str:
    x, odd = d.name("x"), d.rank()
    call = d.random.choice((f"dist.all_reduce({x})", f"dist.broadcast({x}, src={d.rank()})"))
    shapes = d.random.choice((("6", "7"), ("2, 3", "3, 2"), ("6", "2, 3")))
    return f"{x} = torch.ones(*(({shapes[0]},) if rank == {odd} else ({shapes[1]},)))\n{call}\n"


@wrong("mismatch", "MismatchError")
def dtypes_that_differ(d: Draw) -> str:
    x, odd = d.name("x"), d.rank()
    return (
        f"{x} = torch.ones({d.size()}, dtype=torch.float64 if rank == {odd} else torch.float32)\ndist.all_reduce({x})\n"
    )


@wrong("mismatch", "MismatchError")
def a_list_beside_one_tensor(d: Draw) -> str:
    out, size = d.name("out"), d.small()
    return (
        f"{out} = torch.ones({size})\nif rank == {d.rank()}:\n"
        f"    dist.reduce_scatter({out}, [torch.ones({size}) for _ in range(n)])\n"
        f"else:\n    dist.reduce_scatter_single({out}, torch.ones({size} * n))\n"
    )


@wrong("mismatch", "MismatchError")
def splits_that_disagree(d: Draw) -> str:
    out, a = d.name("out"), d.rank()
    sizes = f"[2 + (rank == {a})] + [2] * (n - 1)"
    whole = f"torch.ones(2 * n + (rank == {a}))"
    return f"{out} = torch.ones(2 * n)\ndist.all_to_all_single({out}, {whole}, [2] * n, {sizes})\n"


@wrong("mismatch", "GroupError", "DeadlockError", "MismatchError")
def a_group_that_some_ranks_leave_out(d: Draw) -> str:
    return f"if rank != {d.rank()}:\n    dist.new_group(list(range(n)))\n"


# Invalid parameters.


@wrong("parameter", "PeerError")
def a_peer_that_is_not_there(d: Draw) -> str:
    x = d.name("x")
    call = d.random.choice((f"dist.send({x}, dst=n)", f"dist.recv({x}, src=n + 3)", f"dist.broadcast({x}, src=n)"))
    return f"{x} = torch.ones({d.size()})\nif rank == {d.rank()} or 'broadcast' in {call!r}:\n    {call}\n"


@wrong("parameter", "PeerError")
def a_message_to_oneself(d: Draw) -> str:
    x = d.name("x")
    call = d.random.choice(
        (f"dist.send({x}, dst=rank)", f"dist.isend({x}, dst=rank).wait()", f"dist.recv({x}, src=rank)")
    )
    return f"{x} = torch.ones({d.size()})\nif rank == {d.rank()}:\n    {call}\n"


@wrong("parameter", "TensorError")
def an_output_of_the_wrong_size(d: Draw) -> str:
    x, size = d.name("x"), d.small()
    call = d.random.choice(
        (
            f"dist.all_gather_single(torch.empty({size} * n + 1), {x})",
            f"dist.all_gather([torch.empty({size}) for _ in range(n + 1)], {x})",
            f"dist.reduce_scatter_single(torch.empty({size} + 1), {x}.repeat(n))",
            f"dist.all_to_all_single(torch.empty({size} * n), {x}.repeat(n), [{size}] * n, [{size} + 1] * n)",
        )
    )
    return f"{x} = torch.ones({size})\n{call}\n"


@wrong("parameter", "TensorError")
def a_buffer_with_holes(d: Draw) -> str:
    x = d.name("x")
    call = d.random.choice((f"dist.all_reduce({x})", f"dist.broadcast({x}, src=0)"))
    return f"{x} = torch.ones({d.small() + 1}, 4)[:, 1]\n{call}\n"


@wrong("parameter", "GroupError")
def a_group_that_is_gone(d: Draw) -> str:
    g, x = d.name("g"), d.name("x")
    call = d.random.choice(
        (collective(d, x, f", group={g}"), f"dist.all_gather_single(torch.empty(2 * n), {x}, group={g})")
    )
    return f"{g}, {x} = dist.new_group(), torch.ones(2)\ndist.barrier()\ndist.destroy_process_group({g})\n{call}\n"


@wrong("parameter", "GroupError", least=3)
def a_rank_outside_the_group(d: Draw) -> str:
    g, x = d.name("g"), d.name("x")
    return f"{g}, {x} = dist.new_group(list(range(n - 1))), torch.ones(2)\ndist.all_reduce({x}, group={g})\n"


@wrong("parameter", "NumericsError")
def not_a_number(d: Draw) -> str:
    x = d.name("x")
    return f"{x} = torch.ones({d.small()})\nif rank == {d.rank()}:\n    {x}[0] = 0 * torch.inf\ndist.all_reduce({x})\n"


# Requests.


def pending(d: Draw, x: str, out: str) -> str:
    """A collective in flight that reads `x` and fills `out`."""
    return d.random.choice(
        (
            f"dist.all_gather_single({out}, {x}, async_op=True)",
            f"dist.all_gather(list({out}.chunk(n)), {x}, async_op=True)",
            f"dist.reduce_scatter_single({x}, {out}, async_op=True)",
        )
    )


@wrong("request", "RequestError")
def never_waited_for(d: Draw) -> str:
    x, (a, b) = d.name("x"), d.pair()
    return d.random.choice(
        (
            f"{x} = torch.ones({d.size()})\ndist.all_reduce({x}, async_op=True)\ndist.barrier()\n",
            f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.isend({x}, dst={b})\n"
            f"elif rank == {b}:\n    dist.recv({x}, src={a})\n",
            f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.send({x}, dst={b})\n"
            f"elif rank == {b}:\n    dist.irecv({x}, src={a})\n",
        )
    )


TOUCHES = ("{x}.sum().item()", "{x} + 1", "{x}.clone()", "{x}[0] = 3", "{x}.add_(1)", "{x}.zero_()", "{x}.tolist()")


@wrong("request", "RequestError")
def a_result_touched_before_wait(d: Draw) -> str:
    x, w = d.name("x"), d.name("w")
    touch = d.random.choice(TOUCHES).format(x=x)
    return f"{x} = torch.ones({d.size()})\n{w} = dist.all_reduce({x}, async_op=True)\n{touch}\n{w}.wait()\n"


@wrong("request", "RequestError")
def a_message_touched_before_wait(d: Draw) -> str:
    (a, b), x, w = d.pair(), d.name("x"), d.name("w")
    touch = d.random.choice(TOUCHES).format(x=x)
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.send({x}, dst={b})\n"
        f"elif rank == {b}:\n    {w} = dist.irecv({x}, src={a})\n    {touch}\n    {w}.wait()\n"
    )


@wrong("request", "RequestError")
def what_is_sent_is_written(d: Draw) -> str:
    (a, b), x, w = d.pair(), d.name("x"), d.name("w")
    touch = d.random.choice(TOUCHES[3:6]).format(x=x)
    return (
        f"{x} = torch.ones({d.size()})\n"
        f"if rank == {a}:\n    {w} = dist.isend({x}, dst={b})\n    {touch}\n    {w}.wait()\n"
        f"elif rank == {b}:\n    dist.recv({x}, src={a})\n"
    )


@wrong("request", "RequestError")
def numpy_writes_behind_the_back(d: Draw) -> str:
    x, view, w, size = d.name("x"), d.name("view"), d.name("w"), d.size()
    call = d.random.choice(
        (
            f"dist.all_reduce({x}, async_op=True)",
            f"dist.broadcast({x}, src={d.rank()}, async_op=True)",
            f"dist.reduce({x}, dst={d.rank()}, async_op=True)",
            f"dist.all_gather_single(torch.empty({size} * n), {x}, async_op=True)",
            f"dist.all_to_all_single(torch.empty({size} * n), {x}.repeat(n), async_op=True)",
            f"dist.reduce_scatter_single({x}, torch.ones({size} * n), async_op=True)",
        )
    )
    if "repeat" in call:
        x2 = d.name("x")
        call = call.replace(f"{x}.repeat(n)", x2)
        return f"{x2} = torch.ones({size} * n)\n{view} = {x2}.numpy()\n{w} = {call}\n{view}[-1] = 9\n{w}.wait()\n"
    write = d.random.choice((f"{view}[0] = 9", f"{view} += 1", f"np.copyto({view}, 7)"))
    return f"{x} = torch.ones({size})\n{view} = {x}.numpy()\n{w} = {call}\n{write}\n{w}.wait()\n"


@wrong("request", "RequestError")
def numpy_writes_into_a_message(d: Draw) -> str:
    (a, b), x, w = d.pair(), d.name("x"), d.name("w")
    mine, other = d.random.choice((("isend", "recv"), ("irecv", "send")))
    me, peer = f"dist.{mine}({x}, {b})", f"dist.{other}({x}, {a})"
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    view = {x}.numpy()\n    {w} = {me}\n    view[0] = 5\n"
        f"    {w}.wait()\nelif rank == {b}:\n    {peer}\n"
    )


@wrong("request", "RequestError")
def two_requests_for_one_buffer(d: Draw) -> str:
    x, w = d.name("x"), d.name("w")
    return (
        f"{x} = torch.ones({d.size()})\n{w} = [dist.all_reduce({x}, async_op=True) for _ in range(2)]\n"
        f"[each.wait() for each in {w}]\n"
    )


@wrong("request", "RequestError")
def waited_for_twice(d: Draw) -> str:
    (a, b), x, w = d.pair(), d.name("x"), d.name("w")
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.send({x}, dst={b})\n"
        f"elif rank == {b}:\n    {w} = dist.irecv({x}, src={a})\n    {w}.wait()\n    {w}.wait()\n"
    )


@wrong("request", "RequestError")
def a_future_of_a_message(d: Draw) -> str:
    (a, b), x = d.pair(), d.name("x")
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    dist.send({x}, dst={b})\n"
        f"elif rank == {b}:\n    dist.irecv({x}, src={a}).get_future().wait()\n"
    )


# Races of messages.


@wrong("message race", "RaceError", least=3)
def from_anybody(d: Draw) -> str:
    root, x, tag = d.rank(), d.name("x"), d.tag()
    how = d.random.choice((f"dist.recv({x}, tag={tag})", f"dist.irecv({x}, tag={tag}).wait()"))
    return (
        f"{x} = torch.full((2,), float(rank))\nif rank == {root}:\n    for _ in range(n - 1):\n        {how}\n"
        f"else:\n{indented(d.pause())}    dist.send({x}, dst={root}, tag={tag})\n"
    )


@wrong("message race", "RaceError", "DeadlockError", least=3)
def a_named_receive_that_may_starve(d: Draw) -> str:
    root, x, tag = d.rank(), d.name("x"), d.tag()
    one, other = (root + 1) % d.n, (root + 2) % d.n
    how = d.random.choice((f"dist.recv({x}, tag={tag})", f"dist.irecv({x}, tag={tag}).wait()"))
    late = f"    if rank == {one}:\n        time.sleep(0.03)\n" * d.random.randrange(2)
    return (
        f"{x} = torch.full((2,), float(rank))\n"
        f"if rank == {root}:\n    {how}\n    dist.recv({x}, src={one}, tag={tag})\n"
        f"elif rank in ({one}, {other}):\n{late}    dist.send({x}, dst={root}, tag={tag})\n"
    )


def indented(lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines.splitlines())


# Threads.


def late(d: Draw) -> str:
    """Something that lets one thread be done before the other begins, or not."""
    return d.random.choice(("", "time.sleep(0.02 * k)", "time.sleep(0.04 * k)"))


@wrong("thread", "ThreadError", "RequestError")
def two_threads_on_one_group(d: Draw) -> str:
    work, x = d.name("work"), d.name("x")
    call = d.random.choice(
        (f"dist.all_reduce({x})", f"dist.broadcast({x}, src=0)", f"dist.all_reduce({x}, async_op=True).wait()")
    )
    run = d.random.choice(
        (
            f"ts = [threading.Thread(target={work}, args=(k,)) for k in range(2)]\n[t.start() for t in ts]\n"
            "[t.join() for t in ts]\n",
            f"t = threading.Thread(target={work}, args=(0,))\nt.start()\n{work}(1)\nt.join()\n",
            f"with ThreadPoolExecutor(2) as pool:\n    fs = [pool.submit({work}, k) for k in range(2)]\n",
        )
    )
    return f"def {work}(k):\n    {late(d) or 'pass'}\n    {x} = torch.ones(3)\n    {call}\n{run}"


@wrong("thread", "ThreadError")
def two_threads_with_one_lock(d: Draw) -> str:
    work, lock = d.name("work"), d.name("lock")
    return (
        f"{lock} = threading.Lock()\ndef {work}(k):\n    {late(d) or 'pass'}\n    with {lock}:\n"
        f"        dist.all_reduce(torch.ones(2))\n"
        f"ts = [threading.Thread(target={work}, args=(k,)) for k in range(2)]\n[t.start() for t in ts]\n"
        "[t.join() for t in ts]\n"
    )


@wrong("thread", "ThreadError")
def two_threads_send_with_one_tag(d: Draw) -> str:
    (a, b), tag, work = d.pair(), d.tag(), d.name("work")
    send = d.random.choice((f"dist.send(y, dst={b}, tag={tag})", f"dist.isend(y, dst={b}, tag={tag}).wait()"))
    return (
        f"def {work}(k):\n    {late(d) or 'pass'}\n    y = torch.full((2,), float(k))\n    {send}\n"
        f"if rank == {a}:\n    ts = [threading.Thread(target={work}, args=(k,)) for k in range(2)]\n"
        f"    [t.start() for t in ts]\n    [t.join() for t in ts]\n"
        f"elif rank == {b}:\n    z = torch.zeros(2)\n    for _ in range(2):\n        dist.recv(z, src={a}, tag={tag})\n"
    )


@wrong("thread", "RequestError")
def touched_in_a_thread_of_its_own(d: Draw) -> str:
    x, work = d.name("x"), d.name("work")
    touch = d.random.choice(TOUCHES).format(x=x)
    return (
        f"{x} = torch.ones({d.size()})\ndef {work}():\n    w = dist.all_reduce({x}, async_op=True)\n    {touch}\n"
        f"    w.wait()\nt = threading.Thread(target={work})\nt.start()\nt.join()\n"
    )


@wrong("thread", "RequestError")
def touched_by_another_thread(d: Draw) -> str:
    x = d.name("x")
    touch = d.random.choice((f"{x}.add_(1)", f"{x}.sum()", f"{x}.clone()"))
    slow = d.random.choice(("", "time.sleep(0.02)\n    "))
    return (
        f"{x} = torch.ones({d.size()})\ndef other():\n    {slow}{touch}\n"
        f"w = dist.all_reduce({x}, async_op=True)\nt = threading.Thread(target=other)\nt.start()\nw.wait()\nt.join()\n"
    )


@wrong("thread", "RequestError")
def read_while_a_thread_receives(d: Draw) -> str:
    (a, b), x = d.pair(), d.name("x")
    slow = d.random.choice(("", "    time.sleep(0.02)\n"))
    return (
        f"{x} = torch.ones({d.size()})\nif rank == {a}:\n    t = threading.Thread(target=dist.recv, args=({x}, {b}))\n"
        f"    t.start()\n{slow}    {x}.sum().item()\n    t.join()\nelif rank == {b}:\n    dist.send({x}, dst={a})\n"
    )

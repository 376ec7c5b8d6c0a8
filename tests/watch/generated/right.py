"""Blocks of right programs: lines for each rank, with `rank` and `n` at hand. They check what they get."""

from collections.abc import Callable

from tests.watch.generated.draw import Draw

Block = Callable[[Draw], str]


def reduced(d: Draw) -> str:
    make, group = d.group()
    x = d.name("x")
    return (
        f"{make}{x} = torch.full(({d.size()},), 1.0, dtype={d.dtype()})\n{d.pause()}dist.all_reduce({x}{group})\n"
        + (f"assert {x}[0] == n\n")
    )


def reduced_otherwise(d: Draw) -> str:
    x = d.name("x")
    return f"{x} = torch.ones({d.small()})\ndist.all_reduce({x}, op=dist.ReduceOp.{d.reduction()})\n"


def reduced_later(d: Draw) -> str:
    x, y, w = d.name("x"), d.name("y"), d.name("w")
    end = d.random.choice(
        (
            f"{w}.wait()\n",
            f"while not {w}.is_completed():\n    pass\n",
            f"{w}.get_future().wait()\n",
            f"{w} = {w}.get_future()\nwhile not {w}.done():\n    time.sleep(0.001)\n",
            f"torch.futures.wait_all([{w}.get_future()])\n",
            f"assert {w}.get_future().then(lambda done: done.value()[0].sum()).wait() >= n\n",
        )
    )
    return (
        f"{x}, {y} = torch.ones({d.size()}), torch.ones(3)\n{w} = dist.all_reduce({x}, async_op=True)\n"
        f"{y} += rank\n{d.pause()}{end}assert {x}[-1] == n\n"
    )


def broadcast(d: Draw) -> str:
    make, group = d.group()
    x, root = d.name("x"), d.rank()
    later = d.random.random() < 0.4
    call = (
        f"dist.broadcast({x}, src={root}{group}, async_op=True).wait()"
        if later
        else (f"dist.broadcast({x}, src={root}{group})")
    )
    return f"{make}{x} = torch.full(({d.size()},), float(rank))\n{d.pause()}{call}\nassert {x}[0] == {root}\n"


def reduce_to_root(d: Draw) -> str:
    x, root = d.name("x"), d.rank()
    return f"{x} = torch.ones({d.size()})\ndist.reduce({x}, dst={root})\nif rank == {root}:\n    assert {x}[0] == n\n"


def gathered(d: Draw) -> str:
    x, out, root, size = d.name("x"), d.name("out"), d.rank(), d.size()
    return (
        f"{x} = torch.full(({size},), float(rank))\n"
        f"{out} = [torch.empty({size}) for _ in range(n)] if rank == {root} else None\n"
        f"dist.gather({x}, {out}, dst={root})\nif rank == {root}:\n"
        f"    assert [t[0].item() for t in {out}] == list(range(n))\n"
    )


def scattered(d: Draw) -> str:
    x, parts, root, size = d.name("x"), d.name("parts"), d.rank(), d.size()
    return (
        f"{x} = torch.empty({size})\n{parts} = [torch.full(({size},), float(i)) for i in range(n)]\n"
        f"dist.scatter({x}, {parts} if rank == {root} else None, src={root})\nassert {x}[0] == rank\n"
    )


def all_gathered(d: Draw) -> str:
    x, out, size = d.name("x"), d.name("out"), d.size()
    if d.random.random() < 0.5:
        call = (
            f"{out} = [torch.empty({size}) for _ in range(n)]\ndist.all_gather({out}, {x})\n{out} = torch.cat({out})\n"
        )
    else:
        call = f"{out} = torch.empty({size} * n)\ndist.all_gather_single({out}, {x})\n"
    return f"{x} = torch.full(({size},), float(rank))\n{call}assert {out}[-1] == n - 1 and {out}[0] == 0\n"


def reduce_scattered(d: Draw) -> str:
    x, out, size = d.name("x"), d.name("out"), d.size()
    if d.random.random() < 0.5:
        call = f"dist.reduce_scatter({out}, [{x}.clone() for _ in range(n)])\n"
    else:
        call = f"dist.reduce_scatter_single({out}, {x}.repeat(n))\n"
    return f"{x}, {out} = torch.ones({size}), torch.empty({size})\n{call}assert {out}[0] == n\n"


def exchanged_by_all(d: Draw) -> str:
    x, out, size = d.name("x"), d.name("out"), d.small()
    if d.random.random() < 0.5:
        return (
            f"{x}, {out} = torch.full(({size} * n,), float(rank)), torch.empty({size} * n)\n"
            f"dist.all_to_all_single({out}, {x})\nassert {out}[-1] == n - 1\n"
        )
    return (
        f"{x} = torch.full(((rank + 1) * n,), float(rank))\n{out} = torch.empty(n * (n + 1) // 2)\n"
        f"dist.all_to_all_single({out}, {x}, [i + 1 for i in range(n)], [rank + 1] * n)\nassert {out}[-1] == n - 1\n"
    )


def met(d: Draw) -> str:
    make, group = d.group()
    return (
        make + d.pause() + d.random.choice((f"dist.barrier({group[2:]})\n", f"dist.monitored_barrier({group[2:]})\n"))
    )


def sent(d: Draw) -> str:
    (a, b), tag, x, size = d.pair(), d.tag(), d.name("x"), d.size()
    return (
        f"{x} = torch.full(({size},), float(rank))\n{d.pause()}"
        f"if rank == {a}:\n    dist.send({x}, dst={b}, tag={tag})\n"
        f"elif rank == {b}:\n    dist.recv({x}, src={a}, tag={tag})\n    assert {x}[0] == {a}\n"
    )


def around_a_ring(d: Draw) -> str:
    x, y, size = d.name("x"), d.name("y"), d.size()
    ops = f"[dist.P2POp(dist.isend, {x}, (rank + 1) % n), dist.P2POp(dist.irecv, {y}, (rank - 1) % n)]"
    r = d.name("r")
    by = d.random.choice(
        (
            f"for {r} in dist.batch_isend_irecv({ops}):\n    {r}.wait()\n",
            f"{r} = [dist.irecv({y}, src=(rank - 1) % n), dist.isend({x}, dst=(rank + 1) % n)]\n"
            f"[w.wait() for w in {r}]\n",
            f"{r} = dist.irecv({y}, src=(rank - 1) % n)\ndist.send({x}, dst=(rank + 1) % n)\n"
            f"while not {r}.is_completed():\n    time.sleep(0)\n",
        )
    )
    return f"{x}, {y} = torch.full(({size},), float(rank)), torch.empty({size})\n{by}assert {y}[0] == (rank - 1) % n\n"


def through_a_pipeline(d: Draw) -> str:
    x, size = d.name("x"), d.size()
    return (
        f"{x} = torch.zeros({size})\nif rank > 0:\n    dist.recv({x}, src=rank - 1)\n"
        f"if rank < n - 1:\n    dist.send({x} + 1, dst=rank + 1)\nassert {x}[0] == rank\n"
    )


def from_anybody_with_its_name(d: Draw) -> str:
    root, x, seen, tag = d.rank(), d.name("x"), d.name("seen"), d.own_tag()
    how = d.random.choice(
        (
            f"{seen}.update({{dist.recv({x}, tag={tag}): {x}[0].item()}})\n",
            f"who = dist.recv({x}, tag={tag})\n        {seen}[who] = {x}[0].item()\n",
            f"w = dist.irecv({x}, tag={tag})\n        w.wait()\n        {seen}[w.source_rank()] = {x}[0].item()\n",
        )
    )
    return (
        f"{x}, {seen} = torch.full((2,), float(rank)), {{}}\n"
        f"if rank == {root}:\n    for _ in range(n - 1):\n        {how}"
        f"    assert all({seen}[r] == r for r in {seen}) and len({seen}) == n - 1\n"
        f"else:\n    dist.send({x}, dst={root}, tag={tag})\n"
    )


def from_anybody_by_tag(d: Draw) -> str:
    root, x = d.rank(), d.name("x")
    return (
        f"{x} = torch.full((2,), float(rank))\nif rank == {root}:\n    for r in range(n):\n        if r != rank:\n"
        f"            dist.recv({x}, tag=40 + r)\n            assert {x}[0] == r\n"
        f"else:\n    dist.send({x}, dst={root}, tag=40 + rank)\n"
    )


def in_half_a_group(d: Draw) -> str:
    members, g, x = sorted(d.random.sample(range(d.n), max(2, d.n - 1))), d.name("g"), d.name("x")
    return (
        f"{g}, {x} = dist.new_group({members}), torch.ones({d.small()})\n"
        f"if rank in {members}:\n    dist.all_reduce({x}, group={g})\n    assert {x}[0] == {len(members)}\n"
    )


def in_a_thread(d: Draw) -> str:
    t, x = d.name("t"), d.name("x")
    group, make = d.name("g"), d.random.random() < 0.5
    start = f"{group} = dist.new_group()\n" if make else f"{group} = None\n"
    beside = f"dist.barrier()\n{t}.join()\n" if make else f"{t}.join()\ndist.barrier()\n"
    return (
        f"{start}{x} = torch.ones({d.small()})\n"
        f"{t} = threading.Thread(target=lambda: dist.all_reduce({x}, group={group}))\n"
        f"{t}.start()\n{beside}assert {x}[0] == n\n"
    )


def by_threads_in_turn(d: Draw) -> str:
    x, done, t = d.name("x"), d.name("done"), d.name("t")
    wait = d.random.choice((f"{done}.wait()", f"while not {done}.is_set():\n    time.sleep(0.001)"))
    pool = d.name("pool")
    return d.random.choice(
        (
            f"{x}, {done} = torch.ones(2), threading.Event()\n"
            f"def {t}():\n    dist.all_reduce({x})\n    {done}.set()\n"
            f"threading.Thread(target={t}).start()\n{wait}\ndist.all_reduce({x})\nassert {x}[0] == n * n\n",
            f"{x}, {done} = torch.ones(2), queue.Queue()\n"
            f"threading.Thread(target=lambda: {done}.put(dist.all_reduce({x}, async_op=True))).start()\n"
            f"{done}.get().wait()\nassert {x}[0] == n\ndist.barrier()\n",
            f"{x} = torch.ones(2)\nwith ThreadPoolExecutor(2) as {pool}:\n    for _ in range(3):\n"
            f"        {pool}.submit(dist.all_reduce, {x}).result()\nassert {x}[0] == n**3\n",
            f"{x}, {done} = torch.ones(2), []\ndef {t}():\n    dist.all_reduce({x})\n    {done}.append(1)\n"
            f"threading.Thread(target={t}).start()\nwhile not {done}:\n    time.sleep(0.002)\n"
            f"dist.all_reduce({x})\nassert {x}[0] == n * n\n",
            f"{x}, {done} = torch.ones(2), torch.futures.Future()\n"
            f"threading.Thread(target=lambda: {done}.set_result(dist.all_reduce({x}))).start()\n"
            f"{done}.wait()\ndist.all_reduce({x})\nassert {x}[0] == n * n\n",
        )
    )


def told_by_a_thread_that_receives(d: Draw) -> str:
    """The thread says a word and waits for the answer to what the main thread will then send."""
    (a, b), x, word, t, tag = d.pair(), d.name("x"), d.name("word"), d.name("t"), d.own_tag()
    make, say, hear = d.random.choice(
        (
            ("threading.Event()", "set()", "wait()"),
            ("queue.Queue()", "put(1)", "get()"),
            ("torch.futures.Future()", "set_result(1)", "wait()"),
            ("threading.Barrier(2)", "wait()", "wait()"),
        )
    )
    late = d.random.choice((0, 0.01, 0.05))
    return (
        f"{x} = torch.zeros(2)\nif rank == {a}:\n    {word} = {make}\n    def {t}():\n        time.sleep(0.005)\n"
        f"        {word}.{say}\n        dist.recv({x}, src={b}, tag={tag})\n"
        f"    {t} = threading.Thread(target={t})\n    {t}.start()\n    {word}.{hear}\n    time.sleep({late})\n"
        f"    dist.send(torch.ones(2), dst={b}, tag={tag})\n    {t}.join()\n    assert {x}[0] == 2\n"
        f"elif rank == {b}:\n    dist.recv({x}, src={a}, tag={tag})\n    dist.send({x} + 1, dst={a}, tag={tag})\n"
    )


def sent_by_threads_with_tags(d: Draw) -> str:
    (a, b), ts, x = d.pair(), d.name("ts"), d.name("x")
    return (
        f"if rank == {a}:\n    {ts} = [threading.Thread(target=dist.send, args=(torch.full((2,), float(k)), {b}),"
        f" kwargs={{'tag': 60 + k}}) for k in range(2)]\n    [t.start() for t in {ts}]\n    [t.join() for t in {ts}]\n"
        f"elif rank == {b}:\n    {x} = torch.zeros(2)\n    for k in range(2):\n"
        f"        dist.recv({x}, src={a}, tag=60 + k)\n        assert {x}[0] == k\n"
    )


def numpy_beside(d: Draw) -> str:
    x, out, view, w = d.name("x"), d.name("out"), d.name("view"), d.name("w")
    return (
        f"{x}, {out} = torch.ones(3), torch.zeros(3 * n)\n{view} = {x}.numpy()\n"
        f"{w} = dist.all_gather_single({out}, {x}, async_op=True)\nassert {view}.sum() == 3\n{w}.wait()\n"
        f"{view}[0] = 9\nassert {out}.numpy().sum() == 3 * n and {x}[0] == 9\n"
    )


def objects(d: Draw) -> str:
    out, root = d.name("out"), d.rank()
    return d.random.choice(
        (
            f"{out} = [None] * n\ndist.all_gather_object({out}, {{'rank': rank}})\n"
            f"assert [o['rank'] for o in {out}] == list(range(n))\n",
            f"{out} = [rank]\ndist.broadcast_object_list({out}, src={root})\nassert {out} == [{root}]\n",
        )
    )


BLOCKS: tuple[Block, ...] = (
    reduced, reduced_otherwise, reduced_later, broadcast, reduce_to_root, gathered, scattered, all_gathered,
    reduce_scattered, exchanged_by_all, met, sent, around_a_ring, through_a_pipeline, from_anybody_with_its_name,
    from_anybody_by_tag, in_half_a_group, in_a_thread, by_threads_in_turn, told_by_a_thread_that_receives,
    sent_by_threads_with_tags, numpy_beside, objects,
)  # fmt: skip

"""The supervisor: receives every call before it is made, and knows when no rank can continue.

A rank reports a call when it posts it and when it begins to wait for it. Reports of one rank come in order. So when
every rank that has not finished waits for a call that lacks its partner, no report can change that any more: it is a
deadlock, for certain and at once. No time limit is involved.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from ...trace import Op, Trace
from ..errors import DeadlockError, GroupError, MismatchError, RankError
from ..verdict import from_fault, places_text
from .drift import Drift
from .grace_period import GracePeriod
from .matching import CollectiveRounds, Finding, Mailbox, disagreement
from .posted_calls import NEW_GROUP, Place, PostedCall, blame, from_report, ranks_text, wrapped
from .races import Races


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread of a rank waits for a call."""

    post: PostedCall
    place: Place
    others: int  # threads of the rank that run on
    thread: str = ""  # its name, unless it is the main one

    def text(self, *, on_group: bool) -> str:
        """`recv(src=1)`, with its group where that is asked for, and its thread where it is not the usual one."""
        group = f" on {self.post.where}" if on_group else ""
        return self.post.text + group + (f" in thread {self.thread!r}" if self.thread else "")


class Supervisor:
    """Pairs the calls of all ranks of one run.

    Args:
        ready: whether a rank computes, or stands in the queue for a processor.
    """

    def __init__(self, world_size: int, ready: Callable[[int], bool] = lambda rank: False) -> None:
        self.world_size, self._ready = world_size, ready
        self.races, self.drift = Races(world_size), Drift()
        self.mailbox, self.rounds = Mailbox(self.races), CollectiveRounds()
        self.posts: list[dict[int, PostedCall]] = [{} for _ in range(world_size)]
        self.waits: list[dict[int, Wait]] = [{} for _ in range(world_size)]  # by thread
        self.futures: list[PostedCall] = []
        self.heard: list[list[PostedCall]] = [[] for _ in range(world_size)]  # calls over since the last post
        self.finished: set[int] = set()
        self.caught: dict[int, str] = {}
        self.suspects: dict[int, tuple[GracePeriod, dict[int, PostedCall]]] = {}
        self.accusations: list[Finding] = []  # of ranks against their own code
        self.patience: GracePeriod | None = None  # of ranks that are not stuck where others are
        self.due: GracePeriod | None = None  # of ranks beside those of the findings
        self.verdict: RankError | None = None

    def take(self, rank: int, report: dict[str, Any]) -> None:
        """One report of one rank. `judge` says what follows, once all that has come in is taken."""
        match report["what"]:
            case "post":
                self._post(from_report(rank, report))
            case "wait":
                post, place = self.posts[rank][report["number"]], Place(report["file"], report["line"])
                self.waits[rank][report["thread"]] = Wait(post, place, int(report["others"]), report["name"])
            case "running":
                if wait := self.waits[rank].get(report["thread"]):
                    self.waits[rank][report["thread"]] = replace(wait, others=int(report["others"]))
            case "continues":
                self.waits[rank].pop(report["thread"], None)
            case "source used":
                self.posts[rank][report["number"]].source_used = True
            case "completed":
                post = self.posts[rank][report["number"]]
                post.completed, post.end = report["tick"], report["end"]
                self.heard[rank].append(post)
                if post.op is Op.RECV and post.peer is None:
                    self.mailbox.resolved(post, report["peer"])
                    self._give_others_time()
            case "replica":
                self.verdict = self.verdict or self.drift.handle(rank, report)
            case "future":
                self.futures.append(self.posts[rank][report["number"]])
                self.heard[rank].append(self.posts[rank][report["number"]])
            case "accused":
                self.accusations.append((len(self.posts[rank]), rank, from_fault(rank, report["fault"])))
                self._give_others_time()
            case "caught":
                self.caught.setdefault(rank, report["error"])
            case other:
                raise ValueError(f"{other!r} is no report of a watcher")

    def finish(self, rank: int) -> None:
        """A rank has returned from its function."""
        self.finished.add(rank)
        self.waits[rank].clear()

    def judge(self, *, final: bool = False) -> RankError | None:
        """The verdict on what is known now. `final`: nothing more will come, so suspicion is enough."""
        if self.verdict is None:
            undecided = self.findings or self.suspects
            self.verdict = self._finding(final) or self._mismatch(final) or (None if undecided else self._stuck())
            if self.verdict is None and len(self.finished) == self.world_size:
                self.verdict = self._left_over() or self.races.check()
        return self.verdict

    def out_of_time(self) -> RankError | None:
        """The verdict at the time limit: ranks that wait for each other, whatever other threads they have."""
        waiting = {rank: waits[0] for rank in range(self.world_size) if (waits := self._waiting(rank))}
        circle = self._circle(waiting)
        if not circle:
            return None
        error = self._standstill(waiting, circle)
        error.details = (*error.details, "other threads of these ranks ran on until the time limit")
        return self._with_caught(error)

    @property
    def deadline(self) -> float:
        """When to judge again even if nothing comes in."""
        periods = (self.patience, self.due, *(period for period, _ in self.suspects.values()))
        return min((period.look for period in periods if period), default=float("inf"))

    def last_call(self, rank: int) -> PostedCall | None:
        """The last call that a rank posted."""
        return next(reversed(self.posts[rank].values()), None)

    def trace(self, zero: float) -> Trace:
        """What the ranks have said so far, with times from `zero` on."""
        in_order = (sorted(posts.values(), key=attrgetter("number")) for posts in self.posts)
        calls = ([post for post in posts if not post.makes_group] for posts in in_order)
        events = tuple(tuple(post.final_event.since(zero) for post in posts) for posts in calls)
        return Trace(self.world_size, events, frozenset(self.finished))

    def left_waiting(self) -> str:
        """Which ranks wait where, in one line."""
        places: dict[str, list[int]] = defaultdict(list)
        waits = [wait for rank in range(self.world_size) if (wait := self.blocked(rank))]
        for wait, text in zip(waits, self._texts(waits), strict=True):
            places[f"{wait.place} in {text}"].append(wait.post.rank)
        return f"left waiting: {places_text(places)}" if places else ""

    def _post(self, post: PostedCall) -> None:
        post.previous = self.last_call(post.rank)
        post.waited, self.heard[post.rank] = self.heard[post.rank], []
        self.posts[post.rank][post.number] = post
        if post.point_to_point:
            self.mailbox.post(post)
            self._give_others_time()
            return
        calls = self.rounds.post(post)
        if disagreement(calls) and id(calls) not in self.suspects:
            self.suspects[id(calls)] = (GracePeriod(self._some_run), calls)

    @property
    def findings(self) -> list[Finding]:
        """What is wrong on one rank, and may be on others, too, whose reports have not come in."""
        return self.mailbox.misfits + self.accusations

    def _give_others_time(self) -> None:
        """From the first finding on."""
        if self.findings:
            self.due = self.due or GracePeriod(self._some_run)

    def _finding(self, final: bool) -> RankError | None:
        """The first finding in the order of the program, of the lowest rank: the same one whichever report is first."""
        if not self.findings:
            return None
        told = self.finished.union(rank for _, rank, _ in self.accusations)
        at_rest = all(rank in told or self.waits[rank] for rank in range(self.world_size))
        if not (final or at_rest or (self.due and self.due.over)):
            return None
        *_, error = min(self.findings, key=lambda finding: finding[:2])
        return error

    def _mismatch(self, final: bool) -> RankError | None:
        """The error of a round that does not fit: once all are in it, none can come, or patience has run out."""
        for period, calls in self.suspects.values():
            complete = len(calls) == len(next(iter(calls.values())).group)
            if complete or final or self._at_rest() or period.over:
                return disagreement(calls)
        return None

    def _at_rest(self) -> bool:
        """True where no rank runs: each has finished or waits."""
        return not self._on_their_way()

    def _on_their_way(self) -> list[int]:
        """The ranks that have not finished and do not wait."""
        return [rank for rank in range(self.world_size) if rank not in self.finished and not self.blocked(rank)]

    def _some_run(self) -> bool:
        """True where a rank that has yet to finish or to wait could do so, once it has a processor."""
        return any(map(self._ready, self._on_their_way()))

    def blocked(self, rank: int) -> Wait | None:
        """The wait that holds a rank up: all its threads wait, and one of them for a call without its partner."""
        waits = self._waiting(rank)
        return waits[0] if waits and len(waits) > max(wait.others for wait in waits) else None

    def _waiting(self, rank: int) -> list[Wait]:
        """The waits of a rank's threads for calls without their partners."""
        return [wait for wait in self.waits[rank].values() if not wait.post.done]

    def _stuck(self) -> RankError | None:
        """The error of a run in which no rank can continue."""
        blocked = {rank: wait for rank in range(self.world_size) if (wait := self.blocked(rank))}
        self.futures = [post for post in self.futures if not post.done]
        if not blocked and not self.futures:
            return None
        settled = self._at_rest()
        for wait in (*blocked.values(), *(Wait(post, post.place, 0) for post in self.futures)):
            if error := self._abandoned(wait):
                certain = settled and not self.caught  # an exception in flight may say more
                return self._with_caught(error) if certain or self._patient() else None
        circle = self._circle(blocked)
        if not blocked or not (settled or (circle and self._patient())):
            return None
        return self._with_caught(self._standstill(blocked, circle))

    def _standstill(self, blocked: dict[int, Wait], circle: list[int]) -> RankError:
        """The error of ranks that can't continue: what keeps a rank of their circle from its partner (any rank, where
        there is no circle), or the circle itself.
        """
        for wait in (blocked[rank] for rank in circle or blocked):
            others = [blocked[rank].post for rank in self._needs(wait.post) if rank in blocked]
            held_up = any(post.point_to_point or post.makes_group for post in others)  # they might come otherwise
            if error := self._misaddressed(wait) or (None if held_up else self._half_group(wait)):
                return error
        return self._deadlock(blocked, circle)

    def _left_over(self) -> RankError | None:
        """The error of a call that all ranks have left behind: gloo lets small sends and new groups through."""
        posts = (*self.mailbox.unmatched(), *self.rounds.unmatched())
        errors = (self._abandoned(Wait(post, post.place, 0)) for post in posts)
        return next((self._with_caught(error) for error in errors if error), None)

    def _patient(self) -> bool:
        """True once the ranks that still run have had their time to finish or to wait."""
        self.patience = self.patience or GracePeriod(self._some_run)
        return self.patience.over

    def _needs(self, post: PostedCall) -> list[int]:
        """Ranks without which a call can't be complete."""
        if post.point_to_point:
            return [r for r in post.group if r != post.rank] if post.peer is None else [post.peer]
        return [rank for rank in post.group if rank not in self.rounds.of(post)]

    def _abandoned(self, wait: Wait) -> RankError | None:
        """The error of a wait for ranks that have finished."""
        post = wait.post
        needed = self._needs(post)
        gone = [rank for rank in needed if rank in self.finished]
        if not gone or (post.peer is None and post.op == Op.RECV and len(gone) < len(needed)):
            return None
        if error := self._misaddressed(wait) or self._half_group(wait):
            return error
        who = ranks_text(gone)
        if post.point_to_point:
            doing = "receiving" if post.op == Op.SEND else "sending"
            details = [f"{who} finished without {doing}", *self._no_partner(post)]
        else:
            here = ranks_text(self.rounds.of(post))
            details = [f"{who} finished without it: call #{post.ordinal} only on {here}"]
        return self._at(wait, DeadlockError, "no partner", *details)

    def _misaddressed(self, wait: Wait) -> RankError | None:
        """The error of a message that waits under another tag, or in another group."""
        post = wait.post
        other = self.mailbox.almost(post) if post.point_to_point else None
        if other is None:
            return None
        send, recv = (post, other) if post.op == Op.SEND else (other, post)
        if send.tag != recv.tag:
            what = f"sent with tag {send.tag} ({send.place}), the receiver wants tag {recv.tag} ({recv.place})"
            return self._at(wait, MismatchError, "tags differ", what)
        what = f"sent on {send.where} ({send.place}), received on {recv.where} ({recv.place})"
        return self._at(
            wait, MismatchError, "groups differ", what, "a message stays in its group: name the same on both"
        )

    def _half_group(self, wait: Wait) -> RankError | None:
        """The error of a `new_group` that some ranks left out."""
        if not wait.post.makes_group:
            return None
        here = ranks_text(self.rounds.of(wait.post))
        what = f"new_group({list(wait.post.shape)}) was called on {here} only"
        local = wait.post.group_name != NEW_GROUP
        fix = "every member must call it" if local else "every rank must call it, also ranks outside the new group"
        return self._at(wait, GroupError, "new_group", what, fix)

    def _deadlock(self, blocked: dict[int, Wait], circle: list[int]) -> RankError:
        """The error of ranks that wait for each other: the circle, rank by rank, and the ranks that wait for it."""
        circle = circle or sorted(blocked)
        waits = [blocked[rank] for rank in (*circle, *(r for r in blocked if r not in circle))]
        texts = self._texts(waits)
        parts = [f"rank {w.post.rank} waits in {t}{self._missing(w.post)}" for w, t in zip(waits, texts, strict=True)]
        if len({w.place for w in waits}) > 1:
            parts = [f"{part} at {w.place}" for part, w in zip(parts, waits, strict=True)]
        advice = self._advice([blocked[rank] for rank in circle])
        return self._at(waits[0], DeadlockError, "deadlock", *wrapped("deadlock: ", parts), *advice)

    def _texts(self, waits: list[Wait]) -> list[str]:
        """What they wait in. A group is named where it is not all ranks, or not the same for all."""
        names = {wait.post.group_name for wait in waits if not wait.post.makes_group}
        parts = [len(names) > 1 or len(wait.post.group) < self.world_size for wait in waits]
        pairs = zip(waits, parts, strict=True)
        return [wait.text(on_group=part and not wait.post.makes_group) for wait, part in pairs]

    def _missing(self, post: PostedCall) -> str:
        """For a collective: the ranks that have not come."""
        return "" if post.point_to_point else f" for {ranks_text(self._needs(post))}"

    def _circle(self, blocked: dict[int, Wait]) -> list[int]:
        """Ranks that wait for each other in a circle, in rank order; [] where there is none.

        A receive from any rank waits for one of many and holds no circle together.
        """
        needs = {
            rank: [r for r in self._needs(wait.post) if r in blocked]
            for rank, wait in blocked.items()
            if wait.post.peer is not None or wait.post.op != Op.RECV
        }
        for start in sorted(needs):
            path: list[int] = []
            rank = start
            while rank is not None and rank not in path:
                path.append(rank)
                rank = next((r for r in needs.get(rank, []) if r in needs), None)
            if rank is not None:
                return sorted(path[path.index(rank) :])
        return []

    def _advice(self, waits: list[Wait]) -> list[str]:
        posts = [wait.post for wait in waits]
        advice = []
        if all(p.op == Op.SEND for p in posts):
            advice = ["nobody is receiving: " + self._cross()]
        elif all(p.op == Op.RECV for p in posts):
            advice = ["every rank receives before it sends: " + self._cross()]
        elif any(p.makes_group and p.group_name != NEW_GROUP for p in posts):
            advice = ["members of a local group meet where each has made as many groups before, in the same order"]
        elif not any(p.point_to_point for p in posts):
            advice = ["ranks must enter their groups in the same order"]
        return advice + next((line for post in posts if (line := self._no_partner(post))), [])

    @staticmethod
    def _cross() -> str:
        return "let them cross with dist.batch_isend_irecv"

    @staticmethod
    def _no_partner(post: PostedCall) -> list[str]:
        """For requests of a batch: what is missing."""
        if post.function not in ("batch_isend_irecv", "isend", "irecv"):
            return []
        other = "irecv" if post.op == Op.SEND else "isend"
        return [f"no matching {other} on rank {post.peer} for {post.text}"]

    def _at(self, wait: Wait, error: type[RankError], kind: str, *details: str) -> RankError:
        found = blame(error, kind, wait.post, *details)
        if wait.place.file:
            found.file, found.line = wait.place.file, wait.place.line
        return found

    def _with_caught(self, error: RankError) -> RankError:
        """Add the exception that some rank swallowed before."""
        for rank, what in sorted(self.caught.items()):
            error.details = (*error.details, f"before that, rank {rank} caught {what}")
            break
        return error

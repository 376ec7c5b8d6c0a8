"""Programs that try to pass without solving anything, or to do harm on the way. None passes, and each is told why."""

import dataclasses
import itertools
import re
import sqlite3
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from puzzles import catalog
from puzzles.grading import checking, driver, rules, style, text, witness
from puzzles.grading.course import Course
from puzzles.grading.engine import grade
from puzzles.grading.pool import shared
from puzzles.grading.puzzle import cases
from puzzles.grading.runs import Broken, Solution, run_cases
from puzzles.grading.verdict import Stage
from reference.cluster import Cluster, EachRank, RankError

SHIFT = dataclasses.replace(catalog.find("ranks.ring_shift"), cases=cases(worlds=(2, 3), length=(6,)), drawn=())
ON_TWO = dataclasses.replace(SHIFT, cases=cases(worlds=(2,), length=(6,)))
RIGHT = text.solution(SHIFT)
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part of it is Landlock, of Linux alone")
HEAD = "    rank, n = dist.get_rank(group), dist.get_world_size(group)\n"


@pytest.fixture(autouse=True)
def whose_ranks() -> None:
    """A learner's: new ones for each text."""


def with_code(*, top: str = "", inside: str = "", below: str = "") -> str:
    """The right solution with code before it, at the beginning of its function, or after it."""
    source = RIGHT.replace("import torch\n", "import torch\n" + textwrap.dedent(top), 1)
    inner = textwrap.indent(textwrap.dedent(inside), "    ")
    return source.replace(HEAD, HEAD + inner) + textwrap.dedent(below)


REACHES = {
    "patches by assignment": (with_code(top="import torch.distributed as d\nd.send = d.send\n"), r"patches d\.send"),
    "patches by setattr": (with_code(top="setattr(torch.distributed, 'send', None)\n"), "uses setattr"),
    "patches through __dict__": (with_code(top="torch.distributed.__dict__['send'] = None\n"), r"uses .*__dict__"),
    "patches a method": (with_code(top="torch.Tensor.__eq__ = lambda a, b: True\n"), r"patches torch.Tensor.__eq__"),
    "deletes": (with_code(top="del torch.distributed.broadcast\n"), "patches torch.distributed.broadcast"),
    "patches in a loop": (with_code(top="for torch.distributed.send in [None]: pass\n"), "patches torch.dist"),
    "patches with an alias": (with_code(top="t = torch\nt.add = None\n"), "uses the module torch as a value"),
    "sys.modules": (with_code(top="import sys\nsys.modules.get('torch')\n"), "imports sys"),
    "importlib": (with_code(top="import importlib\n"), "imports importlib"),
    "__import__": (with_code(top="o = __import__('os')\n"), "uses __import__"),
    "gc": (with_code(top="import gc\n"), "imports gc: a solution may import abc, .*, math, "),
    "a module inside a module": (with_code(top="torch.sys.modules\n"), "uses torch.sys"),
    "frames": (with_code(inside="(lambda: 0).__globals__\n"), "uses __globals__"),
    "a generator's frame": (with_code(inside="(i for i in []).gi_frame\n"), "uses gi_frame"),
    "eval": (with_code(inside="eval('1')\n"), "uses eval"),
    "annotations that run": (with_code(top="import typing\ntyping.get_type_hints\n"), "get_type_hints"),
    "a class pattern": (with_code(inside="match x:\n    case object(__class__=c): pass\n"), "uses __class__"),
    "threads": (with_code(top="import threading\n"), "imports threading"),
    "atexit": (with_code(top="import atexit\natexit.register(print)\n"), "imports atexit"),
    "the tap": (with_code(inside="group.recorder\n"), "uses recorder"),
    "what is below the tap": (with_code(inside="group.carrier.rank()\n"), "uses carrier"),
    "the tap's counts": (with_code(inside="group.ledger.report()\n"), "uses ledger"),
    "a backend": (with_code(inside="group._get_backend(x.device)\n"), "uses _get_backend"),
    "shared memory": (with_code(inside="x.clone().share_memory_()\n"), "uses share_memory_"),
    "a string that reads": (with_code(inside="'{0.__class__}'.format(x)\n"), "uses format: write an f-string"),
    "a module by a string": (with_code(inside="torch.get_device_module('cpu')\n"), "uses torch.get_device_module"),
    "files of torch's own": (with_code(inside="torch.PyTorchFileWriter\n"), "uses torch.PyTorchFileWriter"),
    "files of numpy": (with_code(inside="x.numpy().tofile\n"), "uses tofile"),
    "attributes by copying": (with_code(top="from functools import update_wrapper\n"), "uses .*update_wrapper"),
    "attributes by wrapping": (with_code(top="import functools as f\nf.wraps(len, ())\n"), "uses functools.wraps"),
    "the same by another way": (with_code(top="from contextlib import wraps\n"), "uses contextlib.wraps"),
    "attributes as fields": (with_code(top="import dataclasses\ndataclasses.astuple\n"), "uses dataclasses.astuple"),
    "attributes as items": (with_code(inside="torch.nn.ParameterDict\n"), "uses torch.nn.ParameterDict"),
    "attributes by position": (
        with_code(inside="class P:\n    pass\nmatch x:\n    case P(c): pass\n"),
        r"line \d+ matches P\(c\) by position",
    ),
    "a known class's name for another": (
        with_code(inside="def look(int):\n    match x:\n        case int(c): pass\n"),
        r"matches int\(c\) by position",
    ),
    "a backend, by a name of its own": (
        with_code(top="_get_backend = None\n", inside="group._get_backend(x.device)\n"),
        "uses _get_backend",
    ),
    "what a request reports to": (
        with_code(top="_recorder = None\n", inside="[work._recorder for work in ()]\n"),
        "uses _recorder",
    ),
    "what a request reports": (
        with_code(inside="class A:\n    def to(self, call):\n        self._call = call\n"),
        "uses _call",
    ),
    "another name for a group": (with_code(inside="group.setGroupName(group.getGroupName())\n"), "uses setGroupName"),
    "a forged call": (with_code(top="_make = None\n", inside="group._make\n"), "uses _make"),
    "a private name of torch's": (
        with_code(top="_make_nccl_premul_sum = None\ntorch.distributed._make_nccl_premul_sum\n"),
        "uses torch.distributed._make_nccl_premul_sum",
    ),
    "a string that is run": (
        with_code(top="import typing\ndef _evaluate():\n    typing.Any._evaluate\n"),
        "uses _evaluate",
    ),
    "a module that torch imports when asked": (with_code(inside="torch.onnx.ops\n"), "uses torch.onnx"),
    "a class of classes": (with_code(top="class M(type):\n def __instancecheck__(a, b): 1\n"), "__instancecheck__"),
    "a tensor that grows": (with_code(inside="torch.empty(0).resize_(9)\n"), "uses resize_"),
    "a name of two modules": (
        with_code(top="import torch as t\ndef never():\n    import math as t\nt.sys.modules\n"),
        "gives the name t to two modules",
    ),
    "a module as an attribute": (
        with_code(top="class A:\n    import torch as t\nA.t.sys.modules\n"),
        "imports inside a class, where a module becomes an attribute",
    ),
    "else, where a main program begins": (
        with_code(top="if __name__ == '__main__':\n    pass\nelse:\n    import os\n"),
        "imports os",
    ),
    "everything": (with_code(top="from torch.distributed import *\n"), r"imports \* from torch.distributed"),
}  # fmt: skip


@pytest.mark.parametrize("name", REACHES)
def test_a_right_answer_that_reaches_around_does_not_pass(name: str) -> None:
    source, reason = REACHES[name]
    verdict = grade(ON_TWO, source)
    assert verdict.stage is Stage.STYLE, f"{verdict.stage}: {verdict.reason}"
    assert re.search(reason, verdict.reason), verdict.reason


def _held() -> set[str]:
    """What a group and a request of it hold."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    return {*vars(dist.group.WORLD), *vars(work)}


def test_no_text_has_a_name_by_which_a_rank_reports(clusters) -> None:
    harmless = {"_backend_name", "_desc", "_holds", "_outputs", "destroyed"}
    (held,), _ = clusters(1).trace(_held)
    assert held - harmless <= rules.ATTRIBUTES | rules.OF_THE_TAP, "may a text of its own have this name?"
    assert held >= rules.OF_THE_TAP


READS = {
    "the reference": "from reference.ranks.plain import ring_shift\n",
    "the catalog": "import puzzles.catalog\n",
    "files": "open('/etc/hostname').read()\n",
}


@pytest.mark.parametrize("name", READS)
def test_what_a_text_can_not_read_it_is_told_at_its_line(name: str) -> None:
    verdict = grade(ON_TWO, with_code(top=READS[name]))
    assert verdict.stage is Stage.ERROR, f"{verdict.stage}: {verdict.reason}"
    assert re.search(r"ring_shift.py:\d+|No module named|may not read files", verdict.reason), verdict.reason


CALLS = {"by name": "dist.all_gather(out, x, group=group)", "of the group": "group.allgather([out], [x]).wait()"}


@pytest.mark.parametrize("name", CALLS)
def test_a_native_collective_is_seen_however_it_is_called(name: str) -> None:
    body = f"out = [torch.empty_like(x) for _ in range(n)]\n{CALLS[name]}\nreturn out[rank - 1]\n"
    verdict = grade(dataclasses.replace(SHIFT, budgets=()), with_code(inside=body))
    assert not verdict.passed
    assert re.search(r"line \d+ (uses dist\.|calls )all_gather; allowed here: send", verdict.reason), verdict.reason


def test_what_was_used_and_what_is_allowed_are_both_said() -> None:
    verdict = grade(catalog.find("collectives.ring_all_reduce"), text.wrong(*_own_all_reduce()))
    assert "uses dist.all_reduce; allowed here: send, recv, isend, irecv, batch_isend_irecv" in verdict.reason


ROADS = {
    "as an attribute": "torch.nn.functional.relu(x)",
    "by an import": "from torch.nn.functional import relu\n",
    "by another name": "import torch.nn.functional as F\nF.relu(x)",
    "of torch": "torch.relu(x)",
    "of a tensor": "x.relu()",
    "in a pattern": "match x:\n    case torch.Tensor(relu=f):\n        pass",
}


@pytest.mark.parametrize("name", ROADS)
def test_what_a_puzzle_goes_without_is_refused_and_said(name: str) -> None:
    puzzle = dataclasses.replace(SHIFT, without=("relu",))
    source = with_code(inside=ROADS[name] + "\n")
    assert not style.inspect(SHIFT, style.parse(SHIFT, source))
    (found,) = style.inspect(puzzle, style.parse(puzzle, source))
    assert re.search(r"uses .*relu: it is a part of what this puzzle asks for", str(found))


def _own_all_reduce() -> tuple:
    puzzle = catalog.find("collectives.ring_all_reduce")
    return puzzle, next(mistake for mistake in puzzle.wrong if mistake.name == "torch's own")


def raw_run(body: str) -> list[dict]:
    """What ranks report that run a text which the rules would have refused."""
    job = driver.Job(
        source=f"def f(x):\n{textwrap.indent(textwrap.dedent(body), '    ')}",
        filename="f.py",
        entry="f",
        drive=SHIFT.drive,
        wants_group=False,
        meters=(),
        new=False,
        members=(None,),
        given={},
    )
    try:
        return shared().cluster(2).run(driver.run, job, EachRank([[{"x": 1}], [{"x": 2}]]))
    finally:
        shared().discard(2)


def test_a_patch_that_the_rules_did_not_see_is_found_in_the_process() -> None:
    reports = raw_run("import torch.distributed as dist\ndist.send = dist.recv\nimport torch\ntorch.Tensor.add = None")
    assert {"torch.distributed.send", "torch.Tensor.add"} <= set(reports[0]["patched"])


def test_a_mode_that_is_never_left_is_found() -> None:
    reports = raw_run("import torch\ntorch.device('meta').__enter__()")
    assert reports[0]["left"] == ["torch's stack of modes"]


def test_a_rank_is_given_nothing_of_others() -> None:
    seen = raw_run("""
        import sys
        frame = sys._getframe()
        while "inputs" not in frame.f_locals:
            frame = frame.f_back
        return str(frame.f_locals["inputs"])
        """)
    said = [report["cases"][0]["values"]["returns"] for report in seen]
    assert said == [("value", "[{'x': 1}]"), ("value", "[{'x': 2}]")]


def test_who_knows_the_answer_must_still_send_it() -> None:
    puzzle = dataclasses.replace(SHIFT, cases=SHIFT.cases[-1:])
    (case,) = puzzle.cases
    known = [case.tensor(rank, case.length).tolist() for rank in range(case.n)]
    body = f"""
        crumb, received = x[:1].clone(), torch.empty(1)
        across = [dist.P2POp(dist.isend, crumb, group=group, group_peer=(rank + 1) % n)]
        across.append(dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % n))
        for request in dist.batch_isend_irecv(across):
            request.wait()
        return torch.tensor({known}[(rank - 1) % n])
        """
    verdict = grade(puzzle, with_code(inside=body))
    assert verdict.stage is Stage.BUDGETS, verdict.reason
    assert "no rank sent more than 4 of 24 B (3 ranks, length=6): data must travel" in verdict.reason


def test_the_oracle_is_not_in_the_rank() -> None:
    reports = raw_run("import sys\nreturn [name for name in sys.modules if name.startswith('puzzles')]")
    kind, names = reports[0]["cases"][0]["values"]["returns"]
    assert kind == "list" and names
    assert not [name for _, name in names if "catalog" in name or "oracle" in name]


@ON_LINUX
@pytest.mark.parametrize(
    "writes",
    [
        "open({path!r}, 'w')",
        "import torch; torch.save(torch.ones(1), {path!r})",
        "import torch; torch.from_file({path!r}, shared=True, size=4)",
        "import sqlite3; sqlite3.connect({path!r}).execute('delete from attempts')",
        "import os; os.unlink({path!r})",
        "import subprocess; subprocess.run(['rm', {path!r}], check=True)",
    ],
)
def test_the_state_file_can_not_be_written_from_a_rank(writes: str, tmp_path: Path) -> None:
    path = tmp_path / ".rankwise" / "state.db"
    course = Course(tmp_path)
    course.state.finish(course.state.begin(SHIFT.name, "text", "test"), "wrong values", "", 0.0)
    before = path.read_bytes()
    attempt = writes.format(path=str(path))
    attack = f"try:\n    {attempt}\nexcept BaseException as error:\n    return repr(error)\nreturn 'done'"
    try:
        said = raw_run(attack)[0]["cases"][0]["values"]["returns"][1]
    except Exception as error:
        said = str(error)
    assert said != "done"
    assert path.read_bytes() == before
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert [row.stage for row in course.state.history()] == ["wrong values"]


def test_a_file_that_writes_the_state_file_does_not_pass(tmp_path: Path) -> None:
    course = Course(tmp_path)
    source = with_code(top=f"import sqlite3\nsqlite3.connect({str(tmp_path / '.rankwise' / 'state.db')!r})\n")
    verdict = checking.check(SHIFT.name, source, course=course)
    assert not verdict.passed
    assert not course.state.passed(SHIFT.name)


@ON_LINUX
def test_ranks_share_no_files() -> None:
    smuggled = with_code(
        inside="""
            import numpy
            numpy.save(f"/dev/shm/rankwise-test-{rank}", x.numpy())
            return torch.from_numpy(numpy.load(f"/dev/shm/rankwise-test-{(rank - 1) % n}.npy"))
            """
    )
    cases = [case for case in SHIFT.cases if case.world_size == 2]
    with pytest.raises(Broken, match=r"No such file|may not read"):
        run_cases(Solution(SHIFT, smuggled, "smuggled.py"), cases, shared())
    assert not list(Path("/dev/shm").glob("rankwise-test-*"))


def test_ranks_that_ran_forbidden_code_are_not_used_again() -> None:
    pids = shared().cluster(2).pids
    grade(SHIFT, with_code(top="import gc\n"))
    grade(SHIFT, RIGHT)
    assert not set(pids) & set(shared().cluster(2).pids)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (with_code(top="print('at import')\nraise RuntimeError('at import')\n"), "RuntimeError: at import"),
        (with_code(top="raise SystemExit\n"), "left before finishing"),
        (with_code(inside="import os\nos._exit(0)\n"), "left before finishing|exit"),
        (with_code(inside="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"), "SIGKILL|signals"),
        (with_code(inside="input()\n"), "input"),
        (
            with_code(inside="import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"),
            "threading",
        ),
        (with_code(inside="dist.destroy_process_group()\n"), "destroy"),
    ],
)
def test_harm_is_contained_and_said(source: str, reason: str) -> None:
    verdict = grade(ON_TWO, source)
    assert not verdict.passed
    assert re.search(reason, verdict.reason), verdict.reason
    assert grade(ON_TWO, RIGHT).passed, "the next check works"


def test_what_never_runs_is_not_held_against_anybody() -> None:
    below = '\n\nif __name__ == "__main__":\n    import os\n    print(os.environ)\n'
    assert grade(SHIFT, with_code(below=below)).passed


def test_what_is_usual_is_allowed() -> None:
    usual = """
        from dataclasses import dataclass, field
        from functools import lru_cache, partial, reduce
        from typing import NamedTuple

        class Way(NamedTuple):
            source: int
            target: int

        @dataclass
        class Held:
            _values: list = field(default_factory=list)

            def __len__(self):
                return len(self._values)

        def neighbours(rank, n):
            match divmod(rank + 1, n), Way(0, 0)._replace(target=rank):
                case (int(rounds), int(right)), Way(target=_):
                    return Way((rank - 1) % n, right)._asdict()
        """
    assert grade(SHIFT, with_code(top=usual, inside="neighbours(rank, n), len(Held())\n")).passed


EQUAL_TO_ALL = "class Yes:\n    def __eq__(self, other):\n        return True\n\n"


@pytest.mark.parametrize(
    "named",
    [
        '__name__ = "__main__"\n',
        EQUAL_TO_ALL + "@lambda f: Yes()\ndef __name__():\n    pass\n",
        EQUAL_TO_ALL + "match Yes():\n    case __name__:\n        pass\n",
    ],
    ids=["assigned", "defined", "matched"],
)
def test_what_is_not_read_never_runs(named: str) -> None:
    hidden = 'if __name__ == "__main__":\n    from reference.ranks.plain import ring_shift as answer\n'
    verdict = grade(SHIFT, with_code(top=named + hidden, inside="return answer(x, group)\n"))
    assert not verdict.passed
    assert "name 'answer' is not defined" in verdict.reason


def test_what_a_report_may_contain() -> None:
    from puzzles.grading.values import Other, decoded

    forged = [("value", [1]), ("tensor", 3), ("value", print), ("what", 1), 5, None, ("list", 3), ("other", 4)]
    assert all(isinstance(decoded(report), Other) for report in forged)


@pytest.mark.parametrize(
    "report", [{}, {"patched": []}, {"patched": [], "cases": []}, {"patched": [], "cases": [None]}, 7]
)
def test_a_report_that_makes_no_sense_is_no_pass(report: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "trace", lambda self, *args: ([report] * self.world_size, None))
    verdict = grade(SHIFT, RIGHT)
    assert verdict.stage is Stage.ERROR and "has changed what its rank reports" in verdict.reason


def test_a_report_that_leaves_a_value_out_is_wrong() -> None:
    from puzzles.grading import values

    case = SHIFT.cases[0]
    inputs = [dict(SHIFT.inputs(case, rank)) for rank in range(case.n)]
    expected = values.expectations(SHIFT, case, inputs)
    assert not values.compare(case, [{}] * case.n, expected, None).right


def imported_here() -> int:
    """A number out of a module that was not imported before."""
    import never_compiled  # type: ignore[import-not-found]

    return never_compiled.NUMBER


def test_a_rank_reads_no_module_of_its_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has Python and its packages, and what was imported before it was walled in."""
    (tmp_path / "never_compiled.py").write_text("NUMBER = 7")
    monkeypatch.syspath_prepend(tmp_path)
    with Cluster(1, untrusted=True) as cluster, pytest.raises(RankError, match="No module named 'never_compiled'"):
        cluster.run(imported_here)


def test_packets_between_two_looks_at_the_counters_are_no_hidden_message(monkeypatch: pytest.MonkeyPatch) -> None:
    packets = itertools.chain([10, 14, 14], itertools.repeat(14))  # four late acknowledgements after the first look

    def table(process: int | None, file: str) -> dict[str, int]:
        if file == "netstat":
            return {"IpExt:OutOctets": 14 * 52 + 1000}
        return {"Ip:OutRequests": next(packets), "Tcp:ActiveOpens": 0, "Tcp:RetransSegs": 0}

    monkeypatch.setattr(witness, "_table", table)
    assert witness.counters(None) == witness.Counters(payload=1000, connections=0, sent_again=0)


def test_a_file_that_a_rank_closes_meanwhile_does_not_hide_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, store = Path("/proc/7/fd/3"), Path("/proc/7/fd/4")

    def readlink(file: Path) -> str:
        if file == gone:
            raise FileNotFoundError(file)
        return "/memfd:rankwise (deleted)"

    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([gone, store]))
    monkeypatch.setattr(witness.os, "readlink", readlink)
    assert witness._store(7) == store

"""What to run as soon as there is a GPU: `python -m tests.gpu.first_half_hour`, in the repository, and nothing before.

Step after step in a process of its own, each under a limit of its own, so that one that hangs takes no time from the
others but its own. Every number stands beside what was expected (`expected.py`), and what to look at where it differs.
Takes 12 to 25 minutes, and never more than `BUDGET`; by phases where a run may take 10 minutes at most:

    --phase A     does it work?         up to 10 minutes
    --phase B     how fast?             up to 10 minutes
    --phase C     what may hang         up to 8 minutes; two ranks share the GPU
    --phase D     all checks of two     up to 20 minutes, and only where it is asked for
    --out FOLDER  keeps all numbers as lines of JSON, and what each step has said
    --dry-run     the same steps as small as can be, on the CPU over gloo, in about 10 minutes on two cores: it shows
                  that they run and that values are right; speeds and sizes are not judged

Exits with 0 where all is as expected, 1 where a number or a step is not, 2 where it was called wrongly, and 3 where
there is no GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from expected import ANYWHERE, EXPECTED, MAY_HANG, SLOW

AS_EXPECTED, NOT_SO, NO_GPU = 0, 1, 3
BUDGET = 27 * 60.0  # seconds of all phases that are run where none is asked for
STEPS = """
A machine 20 | A ceilings 30 | A says_where 80 | A alone_lazy 170 | A together_connect 45 | A fails_on_one 55 |
A alone_eager 110 | A learns 60 |
B step 90 | B chains 50 | B profile 45 | B drops 60 | B pairs_of_tokens 25 | B fsdp 45 | B full 45 | B selective 45 |
B zero1 45 | B zero2 45 | B offload 75 |
C 1f1b_32 53 | C zb-v_32 53 | C dualpipev_32 53 | C 1f1b_1 53 | C zb-v_1 53 | C dualpipev_1 53 |
C 1f1b_32_lazy 53 | C zb-v_32_lazy 53 | C dualpipev_32_lazy 53 |
D together_lazy 600 | D together_eager 600
"""
LIMITS = dict.fromkeys("ABC", 9.5 * 60.0) | {"D": 20 * 60.0}  # seconds of each phase
USUAL = "ABC"


@dataclass(frozen=True)
class Step:
    """One step: its phase, its name in `steps.STEPS`, and the seconds that it may take."""

    phase: str
    name: str
    limit: float


PLAN = [Step(phase, name, float(limit)) for phase, name, limit in map(str.split, STEPS.split("|"))]


@dataclass
class Outcome:
    """What a step has found, and how it ended."""

    numbers: dict[str, float]
    words: str
    seconds: float
    trouble: str = ""  # why there are no more numbers


def run(step: Step, limit: float, dry: bool) -> Outcome:
    """Run a step in a session of its own, and end all of it when its time is up."""
    command = [sys.executable, str(Path(__file__).with_name("steps.py")), step.name, *(["--dry-run"] if dry else [])]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    began, trouble = time.monotonic(), ""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(
            command, stdout=out, stderr=words, text=True, cwd=root, env=environment, start_new_session=True
        )
        try:
            if code := process.wait(limit):
                trouble = f"ended with code {code}"
        except subprocess.TimeoutExpired:
            trouble = f"was still running after {limit:.0f} s"
        finally:
            end_session(process)
        out.seek(0)
        words.seek(0)
        lines = [json.loads(line) for line in out.read().splitlines() if line.startswith("{")]
        return Outcome({e["measure"]: e["value"] for e in lines}, words.read(), time.monotonic() - began, trouble)


def end_session(process: subprocess.Popen) -> None:
    """End a step and the ranks that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(step: Step, outcome: Outcome, dry: bool) -> tuple[list[str], bool]:
    """A line for each number, beside what was expected; and whether all was so."""
    lines, fine = [], not outcome.trouble
    for measure, value in outcome.numbers.items():
        if measure in MAY_HANG:
            lines.append(
                f"  {measure:<34} {'ends' if value else 'hangs':>12}   expected {MAY_HANG[measure]}; not judged"
            )
            continue
        known = EXPECTED[measure]
        fits = known.fits(value) or (dry and measure not in ANYWHERE)
        fine = fine and fits
        note = "" if fits else f"   <-- {known.otherwise}"
        lines.append(f"  {measure:<34} {value:>12,.4g} {known.unit:<9} expected {known}{note}")
    if outcome.trouble:
        last = " ".join(outcome.words.split()[-40:])
        lines.append(f"  {step.name} {outcome.trouble}: {last[-300:]}")
    return lines, fine


def go_through(steps: list[Step], dry: bool, out: Path | None) -> bool:
    """Run all that there is time for, and print as it goes. True where all was as expected."""
    began, all_fine = time.monotonic(), True
    phase_began: dict[str, float] = {}
    for step in steps:
        now = time.monotonic()
        phase_began.setdefault(step.phase, now)
        slack = SLOW if dry else 1
        limit = step.limit * slack
        left = min(BUDGET * slack - (now - began), LIMITS[step.phase] * slack - (now - phase_began[step.phase]))
        print(f"{step.phase} {step.name}, up to {min(limit, left):.0f} s", flush=True)
        if left < limit / 3:
            print("  left out: no time is left for it", flush=True)
            all_fine = False
            continue
        outcome = run(step, min(limit, left), dry)
        lines, fine = table(step, outcome, dry)
        all_fine = all_fine and fine
        print("\n".join([*lines, f"  ({outcome.seconds:.0f} s)"]), flush=True)
        if out:
            keep(out, step, outcome)
    return all_fine


def keep(folder: Path, step: Step, outcome: Outcome) -> None:
    """Append the numbers of a step to a file, and put what it has said into another."""
    with (folder / "numbers.jsonl").open("a") as file:
        for measure, value in outcome.numbers.items():
            print(json.dumps({"step": step.name, "measure": measure, "value": value}), file=file)
        if outcome.trouble:
            print(json.dumps({"step": step.name, "trouble": outcome.trouble}), file=file)
    (folder / f"{step.name}.txt").write_text(outcome.words)


def main(arguments: list[str]) -> int:
    """Run the phases that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.first_half_hour", description=__doc__.split("\n")[0])
    parser.add_argument("--phase", choices=[*LIMITS], action="append", help="may be given several times")
    parser.add_argument("--step", action="append", choices=[step.name for step in PLAN], help="these alone")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU over gloo, as small as can be")
    parser.add_argument("--out", type=Path, help="a folder for all numbers and words")
    options = parser.parse_args(arguments)
    if not (options.dry_run or has_gpu()):
        print("there is no GPU here that torch can use: try --dry-run, or run this where there is one", file=sys.stderr)
        return NO_GPU
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    steps = [step for step in PLAN if step.phase in (options.phase or USUAL)]
    if options.step:
        steps = [step for step in PLAN if step.name in options.step]
    return AS_EXPECTED if go_through(steps, options.dry_run, options.out) else NOT_SO


def has_gpu() -> bool:
    """Whether torch can use one. Asked in another process: one that has started CUDA would hold memory of it."""
    question = "import torch, sys; sys.exit(not (torch.cuda.is_available() and torch.distributed.is_nccl_available()))"
    return subprocess.run([sys.executable, "-c", question], timeout=120).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Whether an error is the one that a mistake deserves."""

import re
from pathlib import Path

from reference.cluster.errors import MAX_LINES, RankError
from tests.watch.cases import Mistake

FOREIGN = re.compile(r"site-packages|Traceback|/torch/|\bFile \"|reference/(cluster|trace)/")


def complaints(case: Mistake, outcome: list | RankError) -> list[str]:
    """Everything that is wrong with the outcome of a mistake; nothing where it is named as it should be."""
    if not isinstance(outcome, RankError):
        return ["passed silently"]
    text = str(outcome)
    lines = text.splitlines()
    found = [f"is a {type(outcome).__name__}, not a {case.error}"] * (type(outcome).__name__ != case.error)
    if outcome.rank not in case.blames:
        found.append(f"blames rank {outcome.rank}, not {sorted(case.blames)}")
    elif not _same_file(outcome.file, case.file) or outcome.line not in case.blames[outcome.rank]:
        wanted = sorted(case.blames[outcome.rank])
        found.append(f"blames {Path(outcome.file).name}:{outcome.line}, not {Path(case.file).name}:{wanted}")
    found += [f"does not say {pattern!r}" for pattern in case.says if not re.search(pattern, text, re.DOTALL)]
    if not re.match(rf"rank {outcome.rank} · \S*{re.escape(Path(case.file).name)}:{outcome.line} · \S", lines[0]):
        found.append("does not begin with rank, file:line and call")
    if len(lines) > MAX_LINES:
        found.append(f"has {len(lines)} lines")
    if FOREIGN.search(text):
        found.append("shows frames of others")
    return found


def _same_file(one: str, other: str) -> bool:
    return bool(one) and Path(one).resolve() == Path(other).resolve()

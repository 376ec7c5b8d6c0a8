"""Write down what the watch says of each mistake of the zoo: `python -m tests.watch.dictionary out/zoo.json`.

The site's page of error messages is made of it (`make site`).
"""

import inspect
import json
import sys
import textwrap
from pathlib import Path

from tests.watch import zoo
from tests.watch.cases import Mistake
from tests.watch.warm import WarmClusters


def entry(case: Mistake, clusters: WarmClusters) -> dict[str, str | int]:
    """One mistake: its program without marks, and what came of it."""
    outcome, _ = clusters.run(case)
    source = textwrap.dedent(inspect.getsource(case.program))
    program = source[source.index("def ") :]
    said = f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "nothing"
    folder = str(Path(case.file).parents[3])
    return {
        "name": case.program.__name__.replace("_", " "),
        "ranks": case.world_size,
        "plain": str(case.plain),
        "source": "\n".join(line.split("  # <-")[0] for line in program.rstrip().splitlines()),
        "said": said.replace(folder + "/", ""),
    }


def dictionary() -> dict[str, list[dict[str, str | int]]]:
    """One case of each program, by the file of the zoo that it is in."""
    found: dict[str, list[dict[str, str | int]]] = {}
    seen: set[str] = set()
    with WarmClusters() as clusters:
        for case in zoo.CASES:
            if case.program.__name__ not in seen:
                seen.add(case.program.__name__)
                found.setdefault(Path(case.file).stem, []).append(entry(case, clusters))
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(dictionary(), indent=1), encoding="utf-8")

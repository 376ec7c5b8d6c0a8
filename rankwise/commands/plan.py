"""`rankwise plan`: what a training will cost, and how it is best laid out, before a GPU is paid for."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from reference.models.config import GPTConfig
    from reference.planning.job import Job
    from reference.planning.predict import Prediction
    from reference.planning.search import SearchResult

SHOWN = 5  # of the best layouts


def plan(
    out: Annotated[
        Path | None,
        Argument(help="With --json: the file to write into, instead of printing.", metavar="FILE", show_default=False),
    ] = None,
    model: Annotated[
        str, Option(help="The model to train: a preset, such as llama3-8b, llama3-405b or mixtral-8x7b.")
    ] = "llama3-8b",
    gpus: Annotated[int, Option(help="How many GPUs share the work.")] = 64,
    gpu: Annotated[str, Option(help="The kind of GPU: v100, a100, h100, h200, b200, b300 or gb200.")] = "h100",
    gpus_per_node: Annotated[int, Option(help="How many GPUs are linked within a node.")] = 8,
    sequence: Annotated[int, Option(help="How many tokens a window has.")] = 8192,
    batch: Annotated[int, Option(help="How many windows all GPUs together read in a step.")] = 512,
    precision: Annotated[str, Option(help="The numbers in which matrices are multiplied: bf16 or fp8.")] = "bf16",
    explain: Annotated[
        str | None,
        Option(
            metavar="LAYOUT",
            help="Say why not this layout, such as 'tp 8, pp 4, fsdp'; what it leaves open is chosen for speed.",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        bool, Option("--rules", help="Print what rules of thumb lose, from 8 to 16,384 GPUs of this kind.")
    ] = False,
    rows: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Predict each row of a file with commas, whose first line names its columns.",
            show_default=False,
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        Option(
            "--calibrate",
            help="Measure this machine for half a minute: what products, memory and messages of training here take.",
        ),
    ] = False,
    json: Annotated[bool, Option("--json", help="Print or write JSON, for programs, instead of tables.")] = False,
) -> None:
    """Search all layouts of a training on GPUs: the fastest that fit, where time and memory go, and why not another.

    Nothing is trained, and no GPU is needed: steps are predicted, with constants fitted to published ones.
    """
    from reference.errors import BadInput

    if out and not json:
        raise BadInput(f"{out} is a file for --json")
    if sum(map(bool, (rules, explain, rows, calibrate))) > 1:
        raise BadInput("--rules, --explain, --rows and --calibrate are four questions: ask one")
    if calibrate:
        told = of_this_machine()
    elif rows:
        answers = rows_of(rows)
        told = answers, of_rows(answers)
    elif rules:
        told = of_losses(gpu)
    else:
        job = job_of(model, gpus, gpu, gpus_per_node, sequence, batch, precision)
        told = explained(model, job, explain) if explain else searched(model, job)
    say(*told, json, out)


def say(data: Any, lines: Iterator[str], as_json: bool, out: Path | None) -> None:
    """Print lines; or JSON, into a file if there is one."""
    import json

    from reference.errors import BadInput

    if not as_json:
        for line in lines:
            print(line)
    elif out is None:
        print(json.dumps(data, indent=1))
    else:
        try:
            out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{out} can't be written: {error.strerror}") from None


def job_of(model: str, gpus: int, gpu: str, per_node: int, sequence: int, batch: int, precision: str) -> "Job":
    """What was asked for.

    Raises:
        BadInput: for a name that is not known, or a number that makes no sense.
    """
    from reference.errors import BadInput
    from reference.planning import hardware
    from reference.planning.job import Job, Numbers

    if precision not in list(Numbers):
        raise BadInput(f"--precision is one of {', '.join(Numbers)}, not {precision}")
    cluster = hardware.GpuCluster(hardware.gpu(gpu), gpus, per_node)
    return Job(model_of(model), cluster, sequence, batch, Numbers(precision))


def model_of(name: str) -> "GPTConfig":
    """A GPT or a mixture of experts by its name.

    Raises:
        BadInput: if there is none.
    """
    from reference.errors import BadInput
    from reference.models.config import PRESETS, preset
    from reference.models.moe_config import MIXTURES
    from reference.planning.rules import models

    known = {**dict.fromkeys([*PRESETS, *MIXTURES]), **models()}
    if name not in known:
        raise BadInput(f"no GPT is called {name!r}; there are {', '.join(known)}; --rows takes models of your own")
    return known[name] or preset(name)


def of_this_machine() -> tuple[dict[str, Any], Iterator[str]]:
    """Its rates, and what a step of the demo takes with them, by a few plans."""
    from dataclasses import asdict

    from reference.config import TrainConfig
    from reference.models.config import preset
    from reference.plan import DataParallelism, Plan
    from reference.planning.local import calibrate, predict_here

    rates, config = calibrate(), TrainConfig(preset("demo"))
    plans = {
        "1 rank": (1, Plan()),
        "4 ranks, fsdp": (4, Plan(DataParallelism.FSDP)),
        "4 ranks, tp 4": (4, Plan(tensor_parallel=4)),
        "4 ranks, pp 4": (4, Plan(pipeline_parallel=4, micro_batches=8)),
    }
    seconds = {name: predict_here(rates, config, plan, ranks) for name, (ranks, plan) in plans.items()}
    lines = [str(rates), *(f"a step of demo, {name}: {1e3 * took:.0f} ms" for name, took in seconds.items())]
    return asdict(rates) | {"step_s": seconds}, iter(lines)


def rows_of(path: Path) -> list[dict[str, object]]:
    """A prediction of each row of a file."""
    from reference.planning.rows import predict_rows

    return predict_rows(path)


def of_rows(answers: list[dict[str, object]]) -> Iterator[str]:
    """A line for each."""
    from rankwise.planned import aligned

    names = ("step_s", "tflops_per_gpu", "mfu_pct", "hfu_pct", "memory_gb")
    head = ("name", "step s", "TFLOP/s", "MFU %", "HFU %", "GB", "fits")
    lines = [
        (str(each["name"]), *(f"{each[name]:.2f}" for name in names), "yes" if each["fits"] else "no")
        for each in answers
    ]
    return aligned([head, *lines], left=(0, 6))


def searched(name: str, job: "Job") -> tuple[dict[str, Any], Iterator[str]]:
    """All layouts, and what rules of thumb would take."""
    from rankwise import planned
    from reference.planning.rules import priced
    from reference.planning.search import search

    found = search(job, count=SHOWN)
    advice = priced(job) if found.best else None
    lines = [*planned.of_job(name, job), *planned.of_search(found)]
    if advice:
        lines += ["", *planned.of_rules(advice)]
    data = {"job": data_of_job(name, job), **data_of_search(found), "rules": advice and data_of_advice(advice)}
    return data, iter(lines)


def explained(name: str, job: "Job", words: str) -> tuple[dict[str, Any], Iterator[str]]:
    """One layout, or the best one of those that agree with what was said, beside the best of all.

    Raises:
        BadInput: if the words make no sense, or it does not divide, with the number that is to blame.
    """
    from rankwise import planned
    from reference.errors import BadInput
    from reference.planning.plans import values_in, why_none
    from reference.planning.refusals import verdicts
    from reference.planning.search import SearchSpace, search

    given = values_in(words)
    try:
        part = search(job, SearchSpace().given(**given), count=1)
    except BadInput:
        raise BadInput(f"{words}: {why_none(job, given)}") from None
    found = part.best[0] if part.best else part.smallest
    best = next(iter(search(job, count=1).best), None)
    head = f"{words}: {part.tried:,} layouts agree with that, {part.fitting:,} of them fit; " + (
        "the fastest of these" if part.best else "the smallest of these"
    )
    lines = [*planned.of_job(name, job), head, "", *planned.of_layout(found, best)]
    data = {
        "job": data_of_job(name, job),
        "layout": data_of(found),
        "best": best and data_of(best),
        "verdicts": [{**vars(each), "objection": str(each.objection)} for each in verdicts(job, found.layouts, best)],
    }
    return data, iter(lines)


def of_losses(gpu: str) -> tuple[list[dict[str, Any]], Iterator[str]]:
    """What rules of thumb lose, by model and number of GPUs."""
    from rankwise import planned
    from reference.planning import hardware, rules

    found = list(rules.losses(hardware.gpu(gpu)))
    data = [{"model": name, "gpus": count, "rules": advice and data_of_advice(advice)} for name, count, advice in found]
    return data, planned.of_losses(found)


def data_of_job(name: str, job: "Job") -> dict[str, Any]:
    """What was asked for, as rows of a file would say it."""
    return {
        "model": name,
        "gpu": job.cluster.gpu.name,
        "gpus": job.cluster.gpus,
        "gpus_per_node": job.cluster.per_node,
        "seq": job.sequence,
        "global_batch": job.batch,
        "precision": str(job.numbers),
    }


def data_of_search(found: "SearchResult") -> dict[str, Any]:
    """Counts, the best and the frontier."""
    return {
        "tried": found.tried,
        "fitting": found.fitting,
        "best": [data_of(each) for each in found.best],
        "frontier": [data_of(each) for each in found.frontier],
    }


def data_of(found: "Prediction") -> dict[str, Any]:
    """One layout and what it costs, in the words of rows."""
    from reference.planning.layouts import SIZES
    from reference.planning.refusals import values_of
    from reference.planning.rows import answer

    values = values_of(found.layouts).items()
    layout = {name: int(value) if name in SIZES or isinstance(value, bool) else str(value) for name, value in values}
    return {**answer(str(found.layouts), found), "layout": layout}


def data_of_advice(advice: Any) -> dict[str, Any]:
    """What rules take, and what each loses; null where they find nothing that works."""
    return {
        **data_of(advice.prediction),
        "works": advice.works,
        "loss": advice.loss if advice.works else None,
        "decisions": [
            {"rule": each.rule.name, "decides": str(each), "loss": each.loss if advice.works else None}
            for each in advice.decisions
        ],
    }


COMMANDS = (plan,)

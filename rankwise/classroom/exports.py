"""What other programs read: CSV and JSON of the class, JUnit, Gradescope's results.json, GitHub Classroom's results.

Sources: gradescope-autograders.readthedocs.io/en/latest/specs ("Output format"); the actions
classroom-resources/autograding-grading-reporter and autograding-command-grader, whose `result` is this JSON in base64.
"""

import base64
import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

from puzzles.grading.files import write_whole
from reference.errors import BadInput

from .marks import Mark, Report
from .similar import Pair

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_csv(reports: Sequence[Report]) -> str:
    """A line for each learner: points, out of how many, late or not, the points of each puzzle, remarks."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["learner", "points", "of", "late", *(mark.graded.name for mark in reports[0].marks), "remarks"])
    for one in reports:
        points = [_short(mark.points) for mark in one.marks]
        remarks = _plain("; ".join(one.remarks))
        row = [_plain(one.learner), _short(one.points), _short(one.of), "late" if one.late else "", *points, remarks]
        writer.writerow(row)
    return out.getvalue()


def as_json(reports: Sequence[Report], similar: Sequence[Pair], title: str, seed: int | None) -> str:
    """All that is known, for programs.

    Args:
        seed: None where it is not to be told.
    """
    learners = [
        {
            "learner": one.learner,
            "points": one.points,
            "of": one.of,
            "late": one.late,
            "remarks": one.remarks,
            "puzzles": [_facts(mark) for mark in one.marks],
        }
        for one in reports
    ]
    facts = {"title": title, "learners": learners, "similar": [asdict(pair) for pair in similar]}
    return json.dumps(facts | ({} if seed is None else {"seed": seed}), indent=1, ensure_ascii=False) + "\n"


def _facts(mark: Mark) -> dict:
    graded = asdict(mark.graded)
    del graded["lines"]
    graded["table"] = [
        dict(zip(("measure", "case", "target", "yours", "optimum"), row, strict=True)) for row in mark.graded.table
    ]
    return graded | {"points": mark.points, "worth": mark.worth}


def as_junit(reports: Sequence[Report]) -> str:
    """A suite for each learner, a case for each puzzle: what is not handed in is skipped, what does not pass fails."""
    suites = ElementTree.Element("testsuites", name="rankwise grade")
    for one in reports:
        skipped = sum(not mark.key for mark in one.marks)
        counts = {"tests": len(one.marks), "failures": len(one.marks) - one.passed - skipped, "skipped": skipped}
        values = {name: str(count) for name, count in counts.items()}
        suite = ElementTree.SubElement(suites, "testsuite", name=_in_xml(one.learner), errors="0", **values)
        for mark in one.marks:
            graded = mark.graded
            place = {"classname": _in_xml(one.learner), "name": graded.name, "time": f"{graded.seconds:.3f}"}
            case = ElementTree.SubElement(suite, "testcase", place)
            if not mark.key:
                ElementTree.SubElement(case, "skipped", message=graded.reason)
            elif not graded.passed:
                failure = ElementTree.SubElement(case, "failure", type=graded.stage, message=_in_xml(_first(graded)))
                failure.text = _in_xml(graded.lines)
        if one.remarks:
            ElementTree.SubElement(suite, "system-out").text = _in_xml("\n".join(one.remarks))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def as_gradescope(one: Report) -> str:
    """A learner's results.json, as `run_autograder` must leave it in /autograder/results."""
    tests = [
        {
            "name": mark.graded.name,
            "score": mark.points,
            "max_score": mark.worth,
            "status": "passed" if mark.graded.passed else "failed",
            "output": mark.graded.lines or mark.graded.reason,
            "output_format": "text",
        }
        for mark in one.marks
    ]
    late = ["after the due date"] if one.late else []
    facts = {"score": one.points, "output": "\n".join([*late, *one.remarks]), "output_format": "text", "tests": tests}
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def as_github(one: Report) -> str:
    """A learner's results in base64, as GitHub Classroom's reporter takes them from a variable of the environment."""
    tests = [
        {
            "name": mark.graded.name,
            "status": "pass" if mark.graded.passed else "fail",
            "score": mark.points if mark.counts else 0.0,  # its reporter adds them up
            "message": None if mark.graded.passed else mark.graded.lines or mark.graded.reason,
            "test_code": f"rankwise check {mark.graded.name}",
            "filename": f"puzzles/{mark.graded.name.replace('.', '/')}.py",
            "line_no": 0,
            "execution_time": f"{mark.graded.seconds:.3f}s",
        }
        for mark in one.marks
    ]
    status = "pass" if all(mark.graded.passed for mark in one.marks) else "fail"
    results = {"version": 1, "status": status, "max_score": one.of, "tests": tests}
    return base64.b64encode(json.dumps(results).encode()).decode() + "\n"


def write(path: Path, content: str) -> None:
    """Write a file as a whole; into a pipe or a device, such as /dev/stdout. Raises BadInput where it can't be."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(content, encoding="utf-8")
        else:
            write_whole(path, content)
    except OSError as error:
        raise BadInput(f"{path} can't be written: {(error.strerror or str(error)).lower()}") from None


def file_names(learners: Sequence[str]) -> dict[str, str]:
    """For each learner a name that a file may have, and no two the same."""
    found: dict[str, str] = {}
    for learner in learners:
        plain = re.sub(r"[^\w.@-]+", "_", learner).strip("._")[:100] or "learner"
        name, number = plain, 1
        while name.lower() in {"index", *(each.lower() for each in found.values())}:
            number += 1
            name = f"{plain}-{number}"
        found[learner] = name
    return found


def _first(graded) -> str:
    return (graded.reason.splitlines() or [""])[0]


def _short(number: float) -> str:
    return f"{number:.10g}"


def _plain(value: str) -> str:
    """Text that a spreadsheet takes as text."""
    return f"'{value}" if value.startswith(_FORMULA) else value


def _in_xml(value: str) -> str:
    return _NOT_IN_XML.sub("?", value)

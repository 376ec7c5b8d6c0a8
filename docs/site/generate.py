"""The pages of the site, made from what the repository has: README, lessons, puzzles, the reference, the bug zoo.

mkdocs runs this file (`make site`); mkdocs-gen-files keeps what it writes in memory.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import mkdocs_gen_files

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))
ZOO = HOUSE / "out/zoo.json"  # what `python -m tests.watch.dictionary` has written; without it the page says so
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/machines": "machines/index.md",
    "docs/ring.png": "ring.png",
    "puzzles": "puzzles/index.md",
}


def page(path: str, text: str) -> None:
    """Write a page."""
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)


def copied(source: Path, path: str) -> None:
    """Write a page that is a file as it is."""
    with mkdocs_gen_files.open(path, "wb") as file:
        file.write(source.read_bytes())


def linked(text: str, folder: str = "") -> str:
    """Markdown of a file below `folder`, with links to files of the repository as links to pages.

    What is no page is named without a link.
    """

    def page_of(match: re.Match[str]) -> str:
        words, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path = (HOUSE / folder / target).resolve().relative_to(HOUSE).as_posix().removesuffix("/README.md")
        if (found := _page(path)) is None:
            return f"`{words.strip('`')}`"
        return f"[{words}]({'../' * folder.count('/')}{'../' if folder else ''}{found})"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", page_of, text)


def _page(path: str) -> str | None:
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith(("lessons/", "docs/machines/")) and path.endswith((".ipynb", ".md")):
        return path.removeprefix("docs/")
    room, _, chapter = path.partition("/")
    return f"{room}/{chapter}.md" if room in ("reference", "puzzles") and (HOUSE / path).is_dir() else None


def lessons() -> Iterator[str]:
    """A page for each, with its stored outputs."""
    for file in sorted((HOUSE / "lessons").glob("*.ipynb")):
        copied(file, f"lessons/{file.name}")
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")
        yield f"    * [{file.stem[:2]} {re.sub(r'^[0-9]+[. ]+', '', title)}](lessons/{file.name})"


def reference() -> Iterator[str]:
    """A page for each chapter: its map, then each of its modules in the order of the map."""
    yield "    * [shared rooms](reference/shared.md)"
    shared = [file for file in sorted((HOUSE / "reference").glob("*.py")) if file.stem != "__init__"]
    page("reference/shared.md", "# Shared rooms\n\n" + "\n\n".join(f"::: reference.{file.stem}" for file in shared))
    for chapter in chapters("reference"):
        doc = docstring(HOUSE / "reference" / chapter / "__init__.py")
        files = sorted((HOUSE / "reference" / chapter).rglob("*.py"), key=lambda file: (place(doc, file), file))
        names = [".".join(file.relative_to(HOUSE).with_suffix("").parts) for file in files if file.stem != "__init__"]
        title = chapter.replace("_", " ").capitalize()
        page(f"reference/{chapter}.md", "\n\n".join([f"# {title}", doc, *(f"::: {name}" for name in names)]))
        yield f"    * [{title.lower()}](reference/{chapter}.md)"


def chapters(room: str) -> list[str]:
    """Folders of a room that hold Python."""
    return sorted(file.parent.name for file in (HOUSE / room).glob("*/__init__.py"))


def docstring(file: Path) -> str:
    """Of a module."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def place(map_of_chapter: str, file: Path) -> int:
    """Where a map names a file; at the end where it does not."""
    found = map_of_chapter.find(f"{file.stem}.py")
    return found if found >= 0 else len(map_of_chapter)


def puzzles() -> Iterator[str]:
    """A page for each chapter, with the statements; no answers."""
    from puzzles import catalog
    from puzzles.grading import text

    by_chapter: dict[str, list[str]] = {}
    for name in catalog.names():
        by_chapter.setdefault(name.split(".")[0], []).append(name)
    page("puzzles/index.md", "# Puzzles\n\n" + linked(section("README.md", "Check a solution")))
    for chapter, names in by_chapter.items():
        parts = [f"# Puzzles of {chapter.replace('_', ' ')}"]
        for name in names:
            parts += [f"## {name}", f"```python\n{text.cell(catalog.find(name)).strip()}\n```"]
        page(f"puzzles/{chapter}.md", "\n\n".join(parts))
        yield f"    * [{chapter.replace('_', ' ')}](puzzles/{chapter}.md)"


def section(file: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    text = (HOUSE / file).read_text(encoding="utf-8")
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def zoo() -> None:
    """What a hang or an error means: each mistake of the zoo with its program, and what the watch says."""
    parts = [
        "# What does this hang mean?",
        "Mistakes that people make in distributed programs, each with a program that makes it. *Plain* is what becomes "
        "of it on gloo without the watch; NCCL hangs wherever gloo does. The line below is what the watched cluster "
        "says, from a real run: `python -m tests.watch.dictionary`.",
    ]
    if not ZOO.exists():
        parts.append("It is not written down yet.")
    for kind, cases in json.loads(ZOO.read_text(encoding="utf-8")).items() if ZOO.exists() else ():
        parts.append(f"## {kind}")
        for case in cases:
            parts += [
                f"### {case['name']}",
                f"{case['ranks']} ranks; plain: **{case['plain']}**",
                f"```python\n{case['source']}\n```",
                f"```text\n{case['said']}\n```",
            ]
    page("zoo.md", "\n\n".join(parts))


def machines() -> Iterator[str]:
    """The pages on several machines, as they are."""
    for file in sorted((HOUSE / "docs/machines").glob("*.md")):
        name = "index.md" if file.name == "README.md" else file.name
        page(f"machines/{name}", linked(file.read_text(encoding="utf-8"), "docs/machines").replace("](../../", "](../"))
        if name != "index.md":
            yield f"    * [{file.stem}](machines/{name})"


def main() -> None:
    """All pages, and how they are found."""
    page("index.md", linked((HOUSE / "README.md").read_text(encoding="utf-8")))
    copied(HOUSE / "docs/ring.png", "ring.png")
    page("contributing.md", linked((HOUSE / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    page("glossary.md", "# Glossary\n" + section("CONTRIBUTING.md", "Glossary"))
    zoo()
    nav = [
        "* [rankwise](index.md)",
        "* Lessons",
        *lessons(),
        "* [Puzzles](puzzles/index.md)",
        *puzzles(),
        "* Reference",
        *reference(),
        "* [What does this hang mean?](zoo.md)",
        "* [Glossary](glossary.md)",
        "* [Several machines](machines/index.md)",
        *machines(),
        "* [Contributing](contributing.md)",
    ]
    page("SUMMARY.md", "\n".join(nav))


main()

"""Every page is true: its examples print what it shows, and its links lead somewhere. See ``documents``."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from documents import FileStep, PythonStep, broken_links, matches, read_steps, run_page
from waiting import until

from steptape.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PAGE = """# A page

A file, two commands and their output:

```yaml
# file: notes/one.yaml
a: 1
```

```console
$ cat notes/one.yaml \\
    | sed 's/^a/b/'
# file: notes/one.yaml
b: 1
$ printf 'one\\ntwo\\nthree 3 four\\n'; echo told >&2
one
...
three ... four
told
```

```python
value = 41
```

Text between.

```python
print(value + 1)
```

```text
42
```

<!-- documents: skip -->
```console
$ false
this is not run
```

1. In a list:

    ```console
    $ ls
    notes
    ```
"""


def names(pages: list[Path]) -> list[str]:
    """Return the pages' paths within the repository."""
    return [page.relative_to(ROOT).as_posix() for page in pages]


def pages_of(page: Path) -> set[Path]:
    """Return the pages whose steps a page has."""
    return {step.page for step in read_steps(page)}


#: Pages that no other page continues: the blocks of a continued page run with those of the other.
ENDS = sorted(set(PAGES).difference(*(pages_of(page) - {page} for page in PAGES)))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.only_one] * (page.name == "README.md")) for page in ENDS],
    ids=names(ENDS),
)
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    """Its blocks run from top to bottom in an empty folder; pages without such blocks pass."""
    mismatches = run_page(page, tmp_path / "here")

    assert not mismatches, "\n\n".join(str(mismatch) for mismatch in mismatches)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    """In the repository, where there are no generated pages, as on the site. Links to other hosts are not followed."""
    assert list(broken_links(page)) == []


def written(folder: Path, text: str, name: str = "page.md") -> Path:
    """Write a page."""
    page = folder / name
    page.write_text(text, encoding="utf-8")
    return page


def test_a_page_is_parsed_into_steps(tmp_path: Path) -> None:
    """A skipped block is left out, a text block belongs to the Python before it, and indentation is removed."""
    page = written(tmp_path, PAGE)
    steps = read_steps(page)

    assert steps[0] == FileStep(page=page, line=5, name="notes/one.yaml", text="# file: notes/one.yaml\na: 1\n")
    assert [type(step).__name__ for step in steps[1:]] == [*["CommandStep"] * 2, *["PythonStep"] * 2, "CommandStep"]
    assert steps[-2] == PythonStep(page=page, line=28, code="print(value + 1)\n", output="42\n")
    assert run_page(page, tmp_path / "here") == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("\nb: 1", "\nb: 2", "prints something else"),
        ("three ... four", "three ... five", "prints something else"),
        ("told\n```", "told\nand more\n```", "prints something else"),
        ("\n42\n", "\n43\n", "the Python block prints something else"),
        ("value = 41", "value = 1 / 0", "the Python block fails"),
        ("value = 41", "import os; os._exit(1)", "the Python block ended the process"),
        ("$ ls", "$ python -c 'raise ValueError'", "prints something else"),
    ],
)
def test_a_page_that_is_wrong_is_found(old: str, new: str, reason: str, tmp_path: Path) -> None:
    """The message names the line and shows both outputs."""
    page = written(tmp_path, PAGE.replace(old, new))

    mismatches = run_page(page, tmp_path / "here")

    assert reason in mismatches[0].reason
    assert str(mismatches[0]).startswith(f"{page}:{mismatches[0].step.line}: ")
    assert "+++ run" in str(mismatches[0]) or not mismatches[0].printed


def test_a_page_continues_another_and_prepares_its_folder_out_of_sight(tmp_path: Path) -> None:
    """Steps of the other page come first; a block in an HTML comment runs."""
    written(tmp_path, "```python\n# file: a.txt\n```\n", "first.md")
    text = "<!-- documents: continue first.md -->\n<!--\n```console\n$ touch b.txt\n```\n-->\n```console\n$ ls\n"
    page = written(tmp_path, text + "a.txt\nb.txt\n```\n")

    assert run_page(page, tmp_path / "here") == []


def ended(process: str) -> bool:
    """Whether a process is gone, or dead and not yet waited for."""
    try:
        return (Path("/proc") / process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_process_in_the_background_lives_until_the_page_ends(tmp_path: Path) -> None:
    """A later command can talk to it; nothing waits for it."""
    blocks = (
        "```console\n$ (echo $BASHPID > id; exec sleep 600) > log.txt &\n$ sleep 0.2; kill -0 $(cat id) && echo lives\n"
    )
    page = written(tmp_path, f"{blocks}lives\n```\n")

    assert run_page(page, tmp_path / "here") == []
    until(lambda: ended((tmp_path / "here" / "id").read_text().strip()))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a\n...\nd", "a\nd\n", True),
        ("a\n...", "a\n", True),
        ("a\n...\nd", "a\nb\n", False),
        ("id ... of 3", "id x.y of 3  \n\n", True),
        ("...", "Traceback (most recent call last)\n", False),
        ("", "", True),
        ("", "something\n", False),
    ],
)
def test_output_is_compared_line_by_line(shown: str, printed: str, same: bool) -> None:
    """``...`` stands for any lines, or for any text of a line, but never for a traceback."""
    assert matches(shown, printed) is same


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Headings count as MkDocs writes them; links in code and to other hosts are left alone."""
    written(tmp_path, "# Over `there`: a page\n\n```sh\n# No heading\n```\n", "other.md")
    links = ["(other.md)", "(other.md#over-there-a-page)", "(#here)", "(https://example.com/x)", "(none.md)"]
    links += ["(other.md#no-heading)", "(#there)"]
    page = written(tmp_path, "# Here\n\n`[x](nowhere.md)`\n" + "".join(f"[x]{link}\n" for link in links))

    assert broken_links(page) == ["8: none.md", "9: other.md#no-heading", "10: #there"]


def shell_lines(page: Path) -> list[list[str]]:
    """Return the arguments of the ``steptape`` commands in the page's ``sh`` blocks, without comments and pipes."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    upto = [list(itertools.takewhile(lambda word: word not in {"|", ">", "&&", "2>"}, line)) for line in lines]
    return [line[1:] for line in upto if line[:1] == ["steptape"]]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_commands_that_a_page_shows_are_accepted(page: Path) -> None:
    """Those that are shown without output are parsed and not run: their options and arguments exist."""
    group = typer.main.get_command(app)
    for name, *arguments in shell_lines(page):
        if name.startswith("-"):
            continue
        command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]
        assert command is not None, name
        command.make_context(name, arguments)


def test_a_command_that_does_not_exist_is_found(tmp_path: Path) -> None:
    """So is an option."""
    for line in ("steptape nonsense", "steptape runs --nonsense  # a comment"):
        page = written(tmp_path, f"```sh\n{line}\n```\n")
        with pytest.raises(Exception, match="nonsense"):
            test_the_commands_that_a_page_shows_are_accepted(page)

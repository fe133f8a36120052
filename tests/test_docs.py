"""The documentation: our docstrings as Sphinx reads them, every public name in it, and the site."""

import ast
import inspect
import os
import re
import runpy
import subprocess
import sys
import zlib
from functools import cached_property
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import tpviz

ROOT = Path(__file__).parents[1]
API = sorted((ROOT / "docs/api").glob("*.rst"))
NAMED = re.compile(r"^\.\. (?:auto(?:class|exception|function)|py:(?:data|function)):: (\w+)", re.M)
MODULE = re.compile(r"^\.\. automodule:: tpviz\.(\w+)", re.M)
OPENED = ["index", "notebooks/04_pipelines", "docs/api/verbs", "docs/questions"]


@pytest.fixture
def restructured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from docstrings import restructured

    return restructured


def documented():
    """{name: docstring} of public names and of what is public in classes."""
    found = {}
    for name in tpviz.__all__:
        thing = getattr(tpviz, name)
        found[name] = None if isinstance(thing, dict) else inspect.getdoc(thing)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                ours = inspect.isroutine(value) or isinstance(value, property | cached_property)
                if ours and not member.startswith("_"):
                    found[f"{name}.{member}"] = inspect.getdoc(value)
    return {name: text for name, text in found.items() if text}


def test_every_public_name_has_its_place():
    listed = [name for path in API for name in NAMED.findall(path.read_text())]
    listed += [name for path in API for name in MODULE.findall(path.read_text())]
    assert sorted(listed) == tpviz.__all__


def test_entries_of_docstrings_are_lists(restructured):
    """All of them are valid, and no type is read from a sentence."""
    from docutils.core import publish_doctree
    from docutils.nodes import definition_list_item, system_message

    terms = 0
    for name, text in documented().items():
        lines = [".. default-role:: literal", "", *restructured(text.splitlines())]
        tree = publish_doctree("\n".join(lines), settings_overrides={"report_level": 5})
        faults = [node.astext() for node in tree.findall(system_message)]
        assert not [fault for fault in faults if "INFO" not in fault], name
        terms += len(list(tree.findall(definition_list_item)))
    assert terms > 200


def test_what_is_no_entry_stays(restructured):
    text = [
        "f(x) : of x.",
        "goes on",
        "",
        "Then : not one, as there is an end.",
        "",
        ">>> f : int",
        "1 : 2",
    ]
    assert restructured(text) == [
        "", "**f(x)**", "    of x.", "    goes on", "", "", "**Then**",
        "    not one, as there is an end.", "", ">>> f : int", "1 : 2",
    ]  # fmt: skip


def signatures(name, thing):
    """As `docs/conf.py` hands them on: of a public name, and of what is public in a class."""
    from docstrings import arguments
    from sphinx.util.inspect import signature, stringify_signature

    if inspect.isclass(thing):
        given = stringify_signature(signature(thing))
        yield name, (arguments(None, "class", name, thing, None, given, None) or [given])[0]
        for member, value in vars(thing).items():
            if inspect.isfunction(value) and not member.startswith("_"):
                yield from signatures(f"{name}.{member}", value)
    elif inspect.isfunction(thing):
        yield name, stringify_signature(signature(thing))


def test_signatures_are_read_as_python(monkeypatch):
    """Of others Sphinx shows the markup, ``~`` and full paths; and no type in them is private."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    shown = {}
    for name in tpviz.__all__:
        shown.update(signatures(name, getattr(tpviz, name)))
    for name, text in shown.items():
        ast.parse(f"def f{text}: ...")
        assert not re.search(r"(?<![\w.'])_[A-Za-z]", text), f"{name}{text}"
    assert shown["BlocksView"].startswith("(strategy: ")
    assert "slow_links: dict[int, float] = {}" in shown["Faults"]
    assert len(shown) > 300


def test_twenty_questions_are_answered_by_runs_or_open():
    text = (ROOT / "docs/questions.md").read_text()
    answers = re.split(r"^### (\d+)\. .*$", text, flags=re.M)
    assert [int(number) for number in answers[1::2]] == [*range(1, 21)]
    for number, answer in zip(answers[1::2], answers[2::2]):
        runs = re.findall(r"```{code-cell} python\n(.*?)```", answer, re.S)
        held = any(re.search(r"^ *assert ", run, re.M) for run in runs)
        assert held or "**Not answered" in answer, number
        for run in runs:
            compile(run, f"question {number}", "exec")


APART = "planner", "lab"
"""Folders of the site that ``make site`` writes."""
SITE = pytest.mark.sweep  # takes minutes; .github/workflows/docs.yml builds the site too


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as ``make docs`` writes it; a warning is a failure."""
    made = tmp_path_factory.mktemp("docs")
    command = re.search(r"sphinx-build (.*) out/site", (ROOT / "Makefile").read_text())[1]
    command = command.replace("out/doctrees", str(made / "doctrees")).replace("$(JOBS)", "2")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *command.split(), str(made / "site")],
        cwd=ROOT,
        env=os.environ | {"GITHUB_REPOSITORY": "some/copy", "GITHUB_REF_NAME": "main"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return made / "site"


@pytest.mark.timeout(1200)
@SITE
def test_inventory_has_every_public_name(site):
    head, body = (site / "objects.inv").read_bytes().split(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2")
    names = {line.split(" ")[0] for line in zlib.decompress(body).decode().splitlines()}
    assert {f"tpviz.{name}" for name in tpviz.__all__} <= names


@pytest.mark.timeout(1200)
@SITE
def test_pages_lead_to_the_repository_that_they_are_built_from(site):
    page = (site / "docs/how-to/my-module.html").read_text()
    assert "https://github.com/some/copy/edit/main/docs/how-to/my-module.md" in page
    page = (site / "notebooks/04_pipelines.html").read_text()
    assert "mybinder.org/v2/gh/some/copy/main?urlpath=lab/tree/notebooks/04_pipelines.ipynb" in page
    assert 'href="https://github.com/some/copy/"' in (site / "docs/index.html").read_text()


@pytest.mark.parametrize("known", ["", "some/copy"])
def test_no_address_of_a_repository_is_invented(known, monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", known)
    found = runpy.run_path(str(ROOT / "docs/conf.py"))
    assert ("html_theme_options" in found) == bool(known)


@pytest.mark.timeout(1200)
@SITE
def test_no_markup_is_left_in_pages(site):
    """Outside of code: signs of reStructuredText, reprs of objects, and ``~`` before names."""
    left = []
    for path in site.rglob("*.html"):
        article = re.search(r"<article.*</article>", path.read_text(), re.S)
        text = article[0] if article else ""
        text = re.sub(r"<(pre|script|style|svg|code)\b.*?</\1>", "", text, flags=re.S)
        text = unescape(re.sub(r"<[^>]+>", "", text))
        found = re.findall(r"~[a-z]\w*\.\w|<[a-z ]+>|:[a-z:]+:`|``| at 0x|\.\. \w+::", text)
        left += [f"{path.relative_to(site)}: {one}" for one in found]
    assert left == []


@pytest.mark.timeout(1200)
@SITE
def test_links_lead_somewhere(site):
    """Inside of the site; anchors too."""
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    anchors = {p: a | set(re.findall(r"\bid='([^']+)'", pages[p])) for p, a in anchors.items()}
    broken, count = [], 0
    for path, text in pages.items():
        for link in re.findall(r"""<a\b[^>]*?\bhref=["']([^"']*)["']""", text):
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            file, _, anchor = unquote(unescape(link)).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            if any(target.is_relative_to(site / name) for name in APART):
                continue
            if not target.exists() or anchor not in anchors.get(target, {anchor}) | {""}:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert count > 5_000
    loaded = r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["'](https?:)?//"""
    assert [path.name for path, text in pages.items() if re.search(loaded, text)] == []


@pytest.mark.browser
@pytest.mark.timeout(1200)
@SITE
def test_pages_need_nothing_from_elsewhere(site, tab):
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    for scheme, width in (("light", 1440), ("dark", 400)):
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 900})
        for name in OPENED:
            tab.goto((site / f"{name}.html").as_uri())
            tab.wait_for_load_state("networkidle")
            assert tab.locator("h1").first.inner_text()
            assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, name
    assert len(asked) > 50
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []

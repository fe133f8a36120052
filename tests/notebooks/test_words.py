"""Words of the notebooks: terms are in the glossary and linked to it; no word that only we use."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
_spec = spec_from_file_location("link_terms", ROOT / "docs/link_terms.py")
assert _spec and _spec.loader
link_terms = module_from_spec(_spec)
_spec.loader.exec_module(link_terms)

# What a student may not know. A notebook that uses one of these needs the entry in the glossary.
FIELD = """
1F1B; Adam; DDP; DMA; DualPipe; FC-2; FLOP; FSDP; GEMM; GPipe; GQA; HBM; HSDP; LLC; LayerNorm;
MFU; MLP; Megatron-LM; MoE; NCCL; NIC; NVLink; NVSwitch; InfiniBand; OAG; OAR; ORS; PCIe; RDMA;
RMSNorm; ReLU; SM; SwiGLU; T3-MCA; Ulysses; ZeRO; activation; activation checkpointing; algbw;
all-gather; all-reduce; all-to-all; arithmetic intensity; attention; backward pass; bandwidth;
bfloat16; broadcast; bubble; bucket; busbw; chunk; collective; column-parallel; communicator;
context parallelism; contention; cost model; critical path; CUDA graph; CUDA stream; data
parallelism; deadlock; device mesh; embedding; expert parallelism; exposed communication; float16;
flash attention; forward pass; fp8; gradient accumulation; hidden size; in flight; interconnect;
inter-node link; interleaved; kernel; Kendall's tau; kv cache; latency; layout; ledger; loss
scaling; master weights; memory-bound; mesh; micro batch; microbatch; mixed precision; model
parallelism; null model; offloading; optimizer state; overlap; partial sum; peak memory; pipeline
parallelism; pipeline stage; point-to-point; prefetch; process group; rank correlation;
recomputation; reduce-scatter; replica; residual; ring attention; roofline; row-parallel; sequence
parallelism; shard; straggler; tensor parallelism; tile; token; torus; wave; workgroup; world
size; zero bubble
"""
# Words of our own, each with the field's word for it.
PRIVATE = {
    r"wind tunnel": "emulated cluster",
    r"theat(?:re|er)": "view",
    r"\bwires\b": "link",
    r"\bunder way\b": "in flight",
    r"\bsent for\b": "prefetch",
    r"\bpieces?\b": "shard",
    r"\bat hand\b": "say what is there",
    r"\bcomes? on top\b": "adds",
    r"\bas it lies\b": "without redistribution",
    r"\bheld against\b": "compared with",
    r"\bhow-manyeth\b": "index",
    r"\bworld that is not there\b": "fake process group",
    r"\bjanitor|\bgarbage\b": "cleanup",
    r"\bprogrammes?\b": "schedule",
    r"\bput off\b": "deferred",
    r"\bwho comes first\b": "arrival order",
    r"\bleaves? early\b": "is sent",
    r"\bstretch(?:es)?\b": "segment",
    r"\bsuspects?\b": "cause",
    # Idioms that readers of English as a second language misread.
    r"\b(?:half )?as (?:much|many) again\b": "1.5 times, twice",
    r"\bhardly\b": "almost not",
    r"\bwell over\b": "much more than",
    r"\bheld back\b": "not used to fit",
}


def prose(path):
    """Markdown of a notebook or of a page, without what is code."""
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text()
    return re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", " ", text, flags=re.S)


def forms(terms):
    return [term.strip() for term in terms.replace("\n", " ").split(";")]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_terms_are_in_the_glossary(path):
    known = [form for entry in link_terms.terms(GLOSSARY).values() for form in entry]
    everything = re.compile(link_terms.pattern(known))
    text = prose(path)
    found = {term for term in forms(FIELD) if re.search(link_terms.pattern([term]), text)}
    assert sorted(term for term in found if not everything.fullmatch(term)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_to_the_glossary_are_those_that_would_be_made(path):
    """``make glossary`` makes them."""
    assert link_terms.relink(path, GLOSSARY) == path.read_text()


def test_a_second_run_changes_nothing_and_spares_what_is_no_text():
    cells = [
        "# Ranks\n\nA **rank** has a `rank`, $rank$; [a rank](x).",
        "Ranks, 1F1B, op; T3-1F1B.",
    ]
    once = list(link_terms.linked(cells, GLOSSARY))
    page = link_terms.PAGE
    assert once == [
        f"# Ranks\n\nA **[rank]({page}#rank)** has a `rank`, $rank$; [a rank](x).",
        f"Ranks, [1F1B]({page}#1f1b), op; T3-1F1B.",
    ]
    assert list(link_terms.linked(once, GLOSSARY)) == once


def test_a_word_in_another_sense_is_no_link():
    glossary = (
        "\n### rank\nA process. Also: ranked. Not: ranks well, to rank.\n\n### residual\nThe rest."
    )
    cells = ["It ranks well, to rank; a rank has a residual."]
    link = link_terms.PAGE
    wanted = f"It ranks well, to rank; a [rank]({link}#rank) has a [residual]({link}#residual)."
    assert list(link_terms.linked(cells, glossary)) == [wanted]


@pytest.mark.parametrize(
    "notebook, phrase, anchor",
    [
        ("03_tensor_parallelism", "residual connections", "residual-connection"),
        ("07_cost_models", "residual", "residual"),
        ("08_beat_the_cluster", "residual", "residual"),
    ],
)
def test_links_lead_to_the_sense_that_is_meant(notebook, phrase, anchor):
    text = (ROOT / f"notebooks/{notebook}.ipynb").read_text()
    assert re.findall(rf"\[({phrase})\]\(\S+?#([\w-]+)\)", text) == [(phrase, anchor)]


def test_every_entry_is_short_and_says_where_it_is_shown():
    body, _, targets = GLOSSARY.partition("\n\n[00]:")
    places = dict(re.findall(r"^\[(\w+)\]: (.+)$", "[00]:" + targets, re.M))
    entries = body.split("\n### ")[1:]
    names = [entry.partition("\n")[0] for entry in entries]
    assert len(entries) >= 90 and names == sorted(names, key=str.lower)
    wrong = []
    for name, entry in zip(names, entries):
        text = " ".join(entry.partition("\n")[2].split())
        shown = re.findall(r"\[(\w+)\]", text.partition("Shown in ")[2])
        term = link_terms.pattern(*link_terms.terms("\n### " + entry).values())
        books = [nbformat.read(ROOT / "docs" / places[mark], as_version=4) for mark in shown]
        said = [re.search(term, "\n".join(cell.source for cell in book.cells)) for book in books]
        if len(text.split()) > 60 or not said or not all(said):
            wrong.append((name, shown))
    assert wrong == []


PAGES = [ROOT / name for name in ("README.md", "docs/teaching.md", "docs/teacher/answers.md")]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.stem)
def test_no_private_words(path):
    text = prose(path)
    found = {m[0]: use for word, use in PRIVATE.items() if (m := re.search(word, text, re.I))}
    assert found == {}

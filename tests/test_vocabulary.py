"""The code speaks the field's language: its terms can be found, private words are not identifiers."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import vitkit

ROOT = Path(vitkit.__file__).parent
TERMS = """
    mixed precision; master weights; fused AdamW; CUDA graph; capture; replay; activation checkpointing; prefetch;
    forward; backward; gradient accumulation; micro-batch; validation; EMA; Polyak; rank zero; world size; broadcast;
    all-reduce; early stopping; patience; signal handler; preemption; infer; incomplete run; latest checkpoint; device;
    precision; dtype; compile; eager; input validation; allow-list; micro-batching; queue; data worker; data loader;
    dry run; held out; learning rate schedule; stochastic depth; weight decay; layer decay; mixup; RandAugment
""".replace("\n", " ")
PRIVATE = """
    picture pictures reader readers narrow untold unfinished told whole wholes place places look looks looking quick
    quicken ways served sending practice practise recorded recording alone agreed everyones beside aside given wanted
    one_pass there_and_back said seer whoever
""".split()


def identifiers() -> dict[str, set[str]]:
    """Return the words of all identifiers, and where each stands."""
    words = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.arg):
                names = [node.arg]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names = [node.id]
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names = [node.attr]
            for name in names:
                for word in (name, *re.findall(r"[A-Z]?[a-z]+", name)):
                    words[word.lower()].add(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
        for word in path.stem.split("_"):
            words[word].add(str(path.relative_to(ROOT)))
    return words


def test_private_words_are_not_identifiers():
    words = identifiers()
    words["pictures"] = {
        place for place in words["pictures"] if not place.startswith("serve/schema.py")
    }  # the old field
    words["quick"] = {place for place in words["quick"] if not place.endswith("quick_gelu")}  # the field's own term
    assert {word: sorted(words[word]) for word in PRIVATE if words[word]} == {}


@pytest.mark.parametrize("term", [term.strip() for term in TERMS.split(";")])
def test_a_term_of_the_field_is_found(term: str):
    pattern = re.compile(re.escape(term).replace(r"\ ", r"[\s_-]+").replace(r"\-", r"[\s_-]?"), re.IGNORECASE)
    assert any(pattern.search(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py"))


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_docstrings_begin_with_a_sentence():
    """They end their first paragraph with a full stop and do not begin in the middle of one."""
    fragments = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno} {text.splitlines()[0]}"
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and (
            re.match(r"(Of|By|To|As|In|For|With|That|Whether|Where|When|How|What|Those|Who|Whoever)\b", text)
            or not text.split("\n\n")[0].rstrip().endswith((".", ":", "?", "…", "`"))
        )
    ]
    assert fragments == []

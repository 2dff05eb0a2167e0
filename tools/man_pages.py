#!/usr/bin/env python3
"""Man pages of the folio command, from the text of its --help, into tools/man.

    build/venv-tools/bin/python tools/man_pages.py [--check]

--check writes nothing; exit status 1 if a page is not as it would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from folio import __version__
from folio.cli import app

FOLDER = Path(__file__).resolve().parent / "man"


def roff(text: str) -> str:
    """A line of text, safe in roff."""
    safe = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + safe if safe.startswith((".", "'")) else safe


def paragraphs(text: str) -> list[str]:
    return [roff(each) for each in text.split("\n\n") if each.strip()]


def option_names(parameter: Any) -> str:
    names = ", ".join(f"\\fB{roff(name)}\\fR" for name in sorted(parameter.opts, key=len))
    if parameter.is_flag:
        return names
    return f"{names} \\fI{roff(parameter.metavar or parameter.name.upper())}\\fR"


def described(parameter: Any) -> str:
    text = (getattr(parameter, "help", "") or "").strip()
    if parameter.param_type_name == "option" and not parameter.is_flag and parameter.default not in (None, "", (), []):
        text = f"{text} Default: {parameter.default}.".strip()
    return roff(text)


def page(name: str, command: Any, title: str, others: list[str]) -> str:
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    synopsis = f".B {name}\n" + ("[\\fIOPTION\\fR]... " if options else "")
    synopsis += " ".join(f"\\fI{roff(a.metavar or a.name.upper())}\\fR" for a in arguments)
    dashed = roff(name.replace(" ", "-"))
    lines = [
        f'.TH {dashed.upper()} 1 "" "folio {__version__}" "Folio"',
        ".SH NAME",
        f"{dashed} \\- {roff(title)}",
        ".SH SYNOPSIS",
        f".B {name}\n\\fICOMMAND\\fR [\\fIARGUMENT\\fR]..." if others else synopsis.strip(),
        ".SH DESCRIPTION",
    ]
    for i, text in enumerate(paragraphs(command.help or "")):
        lines += [".PP"] * (i > 0) + [text]
    if others:
        lines += [".SH COMMANDS"]
        for other in others:
            lines += [".TP", f"\\fB{name} {other}\\fR", roff(first_sentence(command.commands[other].help))]
    if arguments and any(described(a) for a in arguments):
        lines += [".SH ARGUMENTS"]
        for argument in arguments:
            lines += [".TP", f"\\fI{roff(argument.metavar or argument.name.upper())}\\fR", described(argument)]
    if options:
        lines += [".SH OPTIONS"]
        for option in options:
            lines += [".TP", option_names(option), described(option) or "\\&"]
    if command.epilog:
        kind, _, text = command.epilog.partition(": ")
        lines += [".SH EXAMPLE" if kind == "Example" else ".SH START WITH", ".nf", roff(text), ".fi"]
    lines += [
        ".SH SEE ALSO",
        "\\fBfolio\\fR(1)" if " " in name else ", ".join(f"\\fBfolio\\-{o}\\fR(1)" for o in others),
    ]
    return "\n".join(line for line in lines if line) + "\n"


def first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".")


def pages() -> dict[str, str]:
    root = typer.main.get_command(app)
    names: list[str] = list(root.commands)  # type: ignore[attr-defined]
    found = {"folio.1": page("folio", root, first_sentence(root.help), names)}
    for name in names:
        command = root.commands[name]  # type: ignore[attr-defined]
        found[f"folio-{name}.1"] = page(f"folio {name}", command, first_sentence(command.help), [])
    return found


def main() -> int:
    wanted = pages()
    there = {file.name: file.read_text() for file in FOLDER.glob("*.1")}
    if "--check" in sys.argv[1:]:
        wrong = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
        for name in wrong:
            print(f"tools/man/{name}: not as the command's help says; next: build/venv-tools/bin/python {sys.argv[0]}")
        return 1 if wrong else 0
    FOLDER.mkdir(exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    print(f"tools/man: {len(wanted)} pages; next: man -l tools/man/folio.1")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The man pages say what --help says, and are sound roff."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, folio_here

PAGES = sorted((ROOT / "tools/man").glob("*.1"))


def test_pages_are_as_the_help_says():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/man_pages.py", "--check"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_has_a_page():
    commands = folio_here("--help").stdout
    for page in PAGES:
        assert page.stem.removeprefix("folio-") in commands
    assert len(PAGES) >= 11


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_roff_is_sound(page):
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-cbou", "-ww", page],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0
    assert done.stderr == ""
    for title in ("NAME", "SYNOPSIS", "DESCRIPTION"):
        assert title in done.stdout

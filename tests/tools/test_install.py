"""tools/install.sh and tools/uninstall.sh: what is put there, that it works, and that nothing is left."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("FOLIO_BUILD", ROOT / "build")


def run(*command: object, **environment: str) -> subprocess.CompletedProcess:
    words = [str(word) for word in command]
    return subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, timeout=300)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_what_is_installed_works_and_goes_again(tmp_path: Path) -> None:
    prefix = tmp_path / "place"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib" / "mine").write_text("not Folio's")
    done = run(ROOT / "tools" / "install.sh", "--without-command", prefix, BUILD)
    assert done.returncode == 0, done.stderr
    there = files(prefix)
    assert {"include/folio/folio.h", "share/man/man1/folio.1", "share/doc/folio/docs/options.md"} <= there
    library = next(path for path in there if path.endswith("libfolio.so.0"))
    script = "import ctypes; print(ctypes.CDLL(None).folio_version is not None)"
    says = run("python3", "-c", script, LD_PRELOAD=str(prefix / library))
    assert says.stdout == "True\n" and "cannot be preloaded" not in says.stderr, says.stderr
    done = run(ROOT / "tools" / "uninstall.sh", prefix)
    assert done.returncode == 0, done.stderr
    assert files(prefix) == {"lib/mine"}
    assert not (prefix / "share").exists() and not (prefix / "include").exists()


def test_links_of_installed_documents_lead_somewhere(tmp_path: Path) -> None:
    done = run(ROOT / "tools" / "install.sh", "--without-command", tmp_path, BUILD)
    assert done.returncode == 0, done.stderr
    documents = list((tmp_path / "share" / "doc" / "folio").rglob("*.md"))
    assert len(documents) > 10
    for document in documents:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} leads to {link}"


def test_a_packager_gets_no_command_and_the_same_files(tmp_path: Path) -> None:
    done = run(ROOT / "tools" / "install.sh", "/usr", BUILD, DESTDIR=str(tmp_path / "root"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "root" / "usr" / "include" / "folio" / "folio.h").is_file()
    assert not (tmp_path / "root" / "usr" / "libexec").exists()
    listed = (tmp_path / "root" / "usr" / "share" / "doc" / "folio" / "installed.txt").read_text()
    assert "/usr/include/folio/folio.h\n" in listed and str(tmp_path) not in listed


def test_nothing_installed_is_said(tmp_path: Path) -> None:
    done = run(ROOT / "tools" / "uninstall.sh", tmp_path / "nowhere")
    assert done.returncode == 1 and "nothing was installed" in done.stderr

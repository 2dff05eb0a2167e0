#!/usr/bin/env python3
"""Installs a build, moves the tree, and uses it as its users do: by CMake, by pkg-config, by hand, by preload. Each
program says at run time whose malloc it got."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 120

# Set by main.
BUILD = Path()
CMAKE = CC = CXX = ""

INSTALLED = (
    "include/folio/folio.h",
    "lib/libfolio.so",
    "lib/libfolio.so.0",
    "lib/libfolio.so.0.1.0",
    "lib/libfolio-embed.so",
    "lib/libfolio-embed.so.0",
    "lib/libfolio-embed.so.0.1.0",
    "lib/libfolio.a",
    "lib/libfolio.o",
    "lib/pkgconfig/folio.pc",
    "lib/pkgconfig/folio-embed.pc",
    "lib/cmake/folio/folio-config.cmake",
    "lib/cmake/folio/folio-config-version.cmake",
    "lib/cmake/folio/folio-targets.cmake",
)


def run(*command: str | Path, status: int = 0, **environment: str) -> str:
    """Stdout of a command that must end with the given status and, if that is 0, without a word on stderr."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FOLIO_", "LD_", "PKG_CONFIG"))}
    done = subprocess.run(
        [str(part) for part in command], env=clean | environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    said = f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    if done.returncode != status:
        raise AssertionError(f"status {done.returncode}, not {status}: {said}")
    if status == 0 and done.stderr:
        raise AssertionError(f"wrote on stderr: {said}")
    return done.stdout


class Consumers(unittest.TestCase):
    """All ways to use an installed Folio."""

    prefix: Path
    lib: Path
    work: Path

    @classmethod
    def setUpClass(cls) -> None:
        """Install, then move: nothing may remember where it was installed to."""
        directory = tempfile.mkdtemp(prefix="folio-consumers-")
        cls.addClassCleanup(shutil.rmtree, directory)
        cls.work = Path(directory)
        first = cls.work / "first"
        run(CMAKE, "--install", BUILD, "--prefix", first, DESTDIR="")
        cls.prefix = cls.work / "a moved place" / "usr"
        cls.prefix.parent.mkdir()
        first.rename(cls.prefix)
        # Where the distribution puts libraries; lib from here on.
        found = next(cls.prefix.rglob("libfolio.o"))
        cls.lib = found.parent

    def path(self, name: str) -> Path:
        """An installed file, wherever `lib` lies."""
        return self.lib / name.removeprefix("lib/") if name.startswith("lib/") else self.prefix / name

    def compile(self, name: str, *arguments: str | Path, compiler: str | None = None) -> Path:
        """Compile and link one program with warnings as errors."""
        program = self.work / name
        run(compiler or CC, "-O2", "-Wall", "-Wextra", "-Werror", *arguments, "-o", program)
        return program

    def pkg_config(self, *arguments: str) -> list[str]:
        """What pkg-config answers for the moved tree."""
        if not shutil.which("pkg-config"):
            self.skipTest("pkg-config is not installed")
        answer = run("pkg-config", *arguments, PKG_CONFIG_PATH=str(self.lib / "pkgconfig"))
        return [part.replace("\\ ", " ") for part in re.split(r"(?<!\\)\s+", answer.strip())]

    def test_what_is_installed(self) -> None:
        """The files, the names in the libraries, no absolute path of the build."""
        for name in INSTALLED:
            self.assertTrue(self.path(name).exists(), name)
        self.assertIn("Library soname: [libfolio.so.0]", run("readelf", "-d", self.path("lib/libfolio.so")))
        self.assertIn("Library soname: [libfolio-embed.so.0]", run("readelf", "-d", self.path("lib/libfolio-embed.so")))
        for file in (*self.prefix.rglob("*.cmake"), *self.prefix.rglob("*.pc")):
            text = file.read_text(encoding="utf-8")
            self.assertNotIn(str(self.work), text, file)
            self.assertNotIn(str(BUILD), text, file)

    def test_cmake_package(self) -> None:
        """find_package and each of its targets."""
        build = self.work / "cmake"
        run(
            *(CMAKE, "-S", HERE / "cmake", "-B", build, "-DWANTED_VERSION=0.1"),
            *(f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}"),
        )
        subprocess.run([CMAKE, "--build", build], check=True, capture_output=True, timeout=TIMEOUT_S)
        for target in ("folio", "static", "override", "embed"):
            for language in ("c", "cxx"):
                with self.subTest(target=target, language=language):
                    run(build / f"{language}_{target}", "theirs" if target == "embed" else "ours")
        run(build / "c_override_static", "ours")
        needed = run("readelf", "-d", build / "c_folio")
        self.assertIn("[libfolio.so.0]", needed)
        for target in ("static", "override"):
            self.assertNotIn("libfolio", run("readelf", "-d", build / f"c_{target}"))

    def test_cmake_package_of_another_version(self) -> None:
        """A version that we are not is refused."""
        for number, version in enumerate(("99.0", "0.2", "1.0")):
            done = subprocess.run(
                [
                    *(CMAKE, "-S", HERE / "cmake", "-B", self.work / f"wrong{number}"),
                    *(f"-DWANTED_VERSION={version}", f"-DCMAKE_PREFIX_PATH={self.prefix}"),
                ],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("version: 0.1.0", done.stderr)

    def test_pkg_config(self) -> None:
        """The shared library takes malloc over; the embedding one does not."""
        self.assertEqual(self.pkg_config("--modversion", "folio"), ["0.1.0"])
        for package, expected in (("folio", "ours"), ("folio-embed", "theirs")):
            flags = self.pkg_config("--cflags", "--libs", package)
            program = self.compile(f"pc_{package}", HERE / "program.c", *flags)
            run(program, expected, LD_LIBRARY_PATH=str(self.lib))
            program = self.compile(f"pc_{package}_cxx", HERE / "program.cc", *flags, compiler=CXX)
            run(program, expected, LD_LIBRARY_PATH=str(self.lib))

    def test_pkg_config_where_unused_libraries_are_dropped(self) -> None:
        """With --as-needed, as some distributions link, a program that calls no malloc itself still gets Folio."""
        flags = self.pkg_config("--libs", "folio")
        source = self.work / "empty.c"
        source.write_text("int main(void) { return 0; }\n", encoding="ascii")
        program = self.compile("as_needed", "-Wl,--as-needed", source, *flags)
        self.assertIn("[libfolio.so.0]", run("readelf", "-d", program))

    def test_object_by_hand(self) -> None:
        """The object on the command line, dynamically and statically."""
        include = f"-I{self.prefix}/include"
        for name, flags in (("object", []), ("object_static", ["-static"]), ("object_pie", ["-static-pie", "-fPIE"])):
            with self.subTest(name):
                # The static ones must link without a warning, too.
                command = [include, *flags, HERE / "program.c", self.lib / "libfolio.o", "-pthread"]
                run(self.compile(name, *command), "ours")
        run(self.compile("object_cxx", include, HERE / "program.cc", self.lib / "libfolio.o", compiler=CXX), "ours")

    def test_archive_by_hand(self) -> None:
        """The archive, by a program that names malloc itself."""
        program = self.compile(
            "archive", f"-I{self.prefix}/include", HERE / "program.c", self.lib / "libfolio.a", "-pthread"
        )
        run(program, "ours")

    def test_bad_alloc(self) -> None:
        """operator new throws, however Folio and the C++ library come."""
        for flags in ([], ["-DSTRING"]):
            self.in_all_ways("throws", HERE / "throws.cc", *flags)
        # Whoever catches all has no type of the exception; docs/errors.md says what to link with.
        main = self.work / "any.cc"
        main.write_text(
            "#include <new>\nint main() { volatile std::size_t n = std::size_t{1} << 62;\n"
            "try { ::operator delete(::operator new(n)); } catch (...) { return 0; } return 1; }\n"
        )
        asked = "-Wl,-u,_ZSt17__throw_bad_allocv"
        run(self.compile("throws_any", main, "-static", asked, self.lib / "libfolio.o", compiler=CXX))

    def test_own_operators(self) -> None:
        """A program that replaces some forms of operator new and delete gets the others, too."""
        source = HERE / "replaces.cc"
        for own in (["PLAIN"], ["ALIGNED"], ["ARRAYS"], ["PLAIN", "ARRAYS"], ["PLAIN", "ALIGNED", "ARRAYS"]):
            warnings = ["-Wno-sized-deallocation", "-Wno-unknown-warning-option"]
            flags = ["-std=c++17", "-fno-builtin", *warnings, *(f"-D{name}" for name in own)]
            if own == ["PLAIN"]:
                self.in_all_ways("replaces", source, *flags)
            program = self.compile("replaces_alone", source, *flags, compiler=CXX)
            run(program)
            run(program, LD_PRELOAD=self.preloadable())

    def test_addresses_of_operators(self) -> None:
        """A program that takes them replaces none, also where they are those of its own entries for calls (no PIE)."""
        source = self.work / "addresses.cc"
        source.write_text(
            "#include <new>\n"
            "void* (*volatile make)(std::size_t) = &::operator new;\n"
            "void (*volatile end)(void*) = &::operator delete;\n"
            "volatile std::size_t size = 500;\n"
            "int main() { end(make(8)); ::operator delete[](::operator new[](48), size); }\n"
        )
        for flags in (["-no-pie", "-fno-pie"], ["-pie", "-fpie"]):
            program = self.compile("addresses", source, "-std=c++17", "-fno-builtin", *flags, compiler=CXX)
            # The sized form is Folio's own: it finds the wrong size, and aborts.
            run(program, status=-6, LD_PRELOAD=self.preloadable())

    def in_all_ways(self, name: str, source: Path, *flags: str) -> None:
        """Builds it with Folio, and runs it, in each way in which Folio and the C++ library may come."""
        first, shared = [source, f"-I{self.prefix}/include", *flags], [f"-L{self.lib}", "-lfolio"]
        static = ["-static-libstdc++", "-static-libgcc"]
        ways = {
            "shared": [*first, *shared],
            "shared_static_library": [*first, *static, *shared],
            "object": [*first, self.lib / "libfolio.o"],
            "object_static_library": [*first, *static, self.lib / "libfolio.o"],
            "object_static": [*first, "-static", self.lib / "libfolio.o"],
            "archive": [*first, self.lib / "libfolio.a", "-pthread"],
        }
        for way, command in ways.items():
            with self.subTest(f"{name} {way} {' '.join(flags)}"):
                run(self.compile(f"{name}_{way}", *command, compiler=CXX), LD_LIBRARY_PATH=str(self.lib))
        run(self.compile(f"{name}_plain", *first, compiler=CXX), LD_PRELOAD=self.preloadable())

    def test_embed_by_name(self) -> None:
        """Loaded late."""
        run(self.compile("late", HERE / "late.c", "-ldl"), self.lib / "libfolio-embed.so.0")

    def test_preload(self) -> None:
        """Into a program that knows nothing of it, but can ask."""
        include = f"-I{self.prefix}/include"
        program = self.compile("asks", include, HERE / "program.c", f"-L{self.lib}", "-lfolio-embed")
        paths = {"LD_LIBRARY_PATH": str(self.lib)}
        run(program, "theirs", **paths)
        maps = run("/bin/cat", "/proc/self/maps", LD_PRELOAD=self.preloadable())
        self.assertIn("libfolio.so.0", maps)
        # The preloaded library's folio_ names come first, so the question is answered by it.
        run(program, "ours", LD_PRELOAD=self.preloadable(), **paths)

    def preloadable(self) -> str:
        """A path without blanks: LD_PRELOAD is split at them."""
        link = self.work / "libfolio.so.0"
        if not link.exists():
            link.symlink_to(self.lib / "libfolio.so.0")
        return str(link)

    def test_headers(self) -> None:
        """Each installed header compiles by itself."""
        headers = sorted((self.prefix / "include").rglob("*.h*"))
        self.assertGreaterEqual(len(headers), 1)
        for header in headers:
            name = header.relative_to(self.prefix / "include")
            suffixes = [("cc", CXX, "-std=c++20")] + ([("c", CC, "-std=c11")] if header.suffix == ".h" else [])
            for suffix, compiler, standard in suffixes:
                source = self.work / f"header.{suffix}"
                source.write_text(f"#include <{name}>\n#include <{name}>\n", encoding="ascii")
                flags = [standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
                run(compiler, *flags, f"-I{self.prefix}/include", source)


def main() -> None:
    """Take our own arguments, leave the rest to unittest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    arguments, rest = parser.parse_known_args()
    global BUILD, CMAKE, CC, CXX
    BUILD, CMAKE, CC, CXX = arguments.build.absolute(), arguments.cmake, arguments.cc, arguments.cxx
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()

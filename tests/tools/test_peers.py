"""The pure functions of bench/peers/build_peers.py and the choice of peers; no network, no build of a peer."""

import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "peers"))

import build_peers
import measure


def names(allocators):
    return [allocator.name for allocator in allocators]


@pytest.fixture
def debian(tmp_path):
    """A folder with the libraries that Debian installs."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for _, file_name, _ in measure.DEBIAN_PEERS.values():
        (folder / file_name).touch()
    return folder


@pytest.fixture
def built(tmp_path):
    folder = tmp_path / "built"
    folder.mkdir()
    return folder


class TestChoice:
    def test_without_built_ones_debians_serve(self, debian, built):
        found, missing = measure.find_peers([debian], built)
        assert names(found) == ["glibc", "tcmalloc", "tbb", "jemalloc-debian", "mimalloc-debian"]
        assert found[1].library == debian / "libtcmalloc_minimal.so.4"
        assert missing == []

    def test_a_newer_one_takes_the_place_of_debians(self, debian, built):
        (built / "libjemalloc5.so").touch()
        found, _ = measure.find_peers([debian], built)
        assert names(found) == ["glibc", "jemalloc", "tcmalloc", "tbb", "mimalloc-debian"]
        assert found[1].library == built / "libjemalloc5.so"

    def test_everything_has_debians_too(self, debian, built):
        for file_name in measure.BUILT_PEERS.values():
            (built / file_name).touch()
        found, missing = measure.find_peers([debian], built, everything=True)
        assert names(found) == ["glibc", *measure.BUILT_PEERS, *measure.DEBIAN_PEERS]
        assert missing == []

    def test_missing_is_what_no_newer_one_replaces(self, tmp_path, built):
        (built / "libmimalloc2.so").touch()
        for everything in (False, True):
            found, missing = measure.find_peers([tmp_path], built, everything=everything)
            assert names(found) == ["glibc", "mimalloc2"]
            assert missing == ["libtcmalloc-minimal4", "libtbbmalloc2", "libjemalloc2"]

    def test_a_peers_environment_reaches_its_process(self, tmp_path, built):
        (built / "libtcmalloc-google.so").touch()
        google = measure.find_peers([tmp_path], built)[0][1]
        assert dict(google.environment) == {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
        without_library = measure.Allocator("google", None, google.environment)
        launcher = measure.build_launcher(tmp_path)
        command = ["sh", "-c", "echo $GLIBC_TUNABLES"]
        assert measure.launch(launcher, without_library, command).stdout == b"glibc.pthread.rseq=0\n"
        own = {"GLIBC_TUNABLES": ""}
        assert measure.launch(launcher, without_library, command, environment=own).stdout == b"\n"

    def test_every_recipe_has_its_file_and_its_crate(self):
        assert set(build_peers.RECIPES) == set(measure.BUILT_PEERS)
        for recipe in build_peers.RECIPES.values():
            folder = build_peers.HERE / recipe.manifest
            pinned = tomllib.loads((folder / "Cargo.toml").read_text())["dependencies"][recipe.crate]
            locked = tomllib.loads((folder / "Cargo.lock").read_text())["package"]
            versions = [package["version"] for package in locked if package["name"] == recipe.crate]
            assert [pinned] == [f"={version.partition('+')[0]}" for version in versions]


class TestVersions:
    @pytest.mark.parametrize(("number", "text"), [(20302, "2.3.2"), (30311, "3.3.11"), (209, "2.0.9")])
    def test_mimalloc(self, number, text):
        assert build_peers.mimalloc_number(number) == text

    def test_define_of(self, tmp_path):
        (tmp_path / "a.h").write_text("#define MI_MALLOC_VERSION 30302   // major + 2 digits minor\n")
        assert build_peers.define_of(tmp_path, "a.h", "MI_MALLOC_VERSION") == 30302
        with pytest.raises(measure.BenchError, match=r"no MI_OTHER in a\.h"):
            build_peers.define_of(tmp_path, "a.h", "MI_OTHER")

    def test_jemalloc(self):
        assert build_peers.jemalloc_version(Path(), "0.7.1+5.3.1-0-g81034ce1") == "5.3.1"

    def test_rpmalloc(self, tmp_path):
        (tmp_path / "CHANGELOG").write_text("1.4.3\n\nFixed an issue\n\n1.4.2\n")
        assert build_peers.rpmalloc_version(tmp_path, "0.2.3") == "1.4.3"

    def test_cargo(self):
        assert build_peers.cargo_number("cargo 1.95.0 (f2d3ce0bd 2026-03-21)\n") == (1, 95)
        assert build_peers.cargo_number("cargo 0.66.0\n") == (1, 65)
        with pytest.raises(measure.BenchError, match="what version"):
            build_peers.cargo_number("rustc 1.2.3")


class TestBuild:
    def test_sources_of_googles_tcmalloc(self):
        build_rs = 'cc.files(["c_src/a/b.cc", "c_src/c.S", "c_src/malloc_bridge.cc"]); "c_src/x_extension_bridge.cc"'
        assert build_peers.listed_sources(build_rs) == [
            "c_src/a/b.cc",
            "c_src/c.S",
            "c_src/tcmalloc/tcmalloc/tcmalloc.cc",
        ]
        assert build_peers.listed_sources("fn main() {}") == []

    def test_the_line_that_tells_most(self):
        output = "building\n  a.c:3: error: no type\nninja: build stopped\n"
        assert build_peers.first_error(output) == "a.c:3: error: no type"
        assert build_peers.first_error("one\ntwo\n\n") == "two"
        assert build_peers.first_error("") == "failed without a message"

    def test_the_library_is_one_file_with_any_number_of_links(self, tmp_path):
        with pytest.raises(measure.BenchError, match="0 files libx"):
            build_peers.only_file(tmp_path, "libx.so*")
        (tmp_path / "libx.so.2.1").touch()
        (tmp_path / "libx.so").symlink_to("libx.so.2.1")
        assert build_peers.only_file(tmp_path, "libx.so*") == (tmp_path / "libx.so.2.1").resolve()
        (tmp_path / "libx.so.1").touch()
        with pytest.raises(measure.BenchError, match="2 files"):
            build_peers.only_file(tmp_path, "libx.so*")

    def test_soname(self):
        line = " 0x000000000000000e (SONAME)             Library soname: [libjemalloc.so.2]\n"
        assert build_peers.soname(f"Dynamic section\n{line} 0x1 (NEEDED) [libc.so.6]\n") == "libjemalloc.so.2"
        assert build_peers.soname(" 0x1 (NEEDED)  Shared library: [libc.so.6]\n") == ""

    def test_a_failing_step_says_why_and_where(self, tmp_path):
        place = build_peers.Workplace(tmp_path, tmp_path, tmp_path / "x.log", 1, "1.0")
        place.run(["sh", "-c", "echo fine"])
        with pytest.raises(measure.BenchError, match=r"^error: bad \(log: .*x\.log\)$"):
            place.run(["sh", "-c", "echo error: bad; exit 1"])
        assert "fine\n$ sh" in place.log.read_text()

    def test_one_that_cannot_be_fetched_stops_only_those_of_its_manifest(self, tmp_path, monkeypatch):
        asked = []

        def fetch(manifest, version, log):
            asked.append(manifest)
            if manifest != ".":
                raise measure.BenchError("no such host")
            return {recipe.crate: ("1.0", tmp_path) for recipe in build_peers.RECIPES.values()}

        monkeypatch.setattr(build_peers, "fetch", fetch)
        monkeypatch.setattr(build_peers, "cargo_version", lambda: (1, 95))
        fetched = build_peers.Fetched(tmp_path)
        for _ in range(2):
            assert fetched.crate(build_peers.RECIPES["snmalloc"]) == ("1.0", tmp_path)
            with pytest.raises(measure.BenchError, match="no such host"):
                fetched.crate(build_peers.RECIPES["tcmalloc-google"])
        assert asked == [".", "tcmalloc-google"]

    def test_table(self):
        assert build_peers.table([["name", "size"], ["a", ""], ["longer", "1"]]) == "name    size\na\nlonger  1"


class TestProof:
    def report(self, malloc, other, mapped):
        lines = [f"{name} {malloc if name == 'malloc' else other}" for name in build_peers.FUNCTIONS]
        return "\n".join([*lines, f"7f00-7f01 r-xp 00000000 08:01 12   {mapped}"]) + "\n"

    def test_what_speaks_against_it(self, tmp_path):
        library, libc = tmp_path / "libx.so", "/lib/libc.so.6"
        library.touch()
        peer = measure.Allocator("x", library)
        assert build_peers.why_unproven(peer, 0, self.report(library, library, library)) == ""
        assert "status 139" in build_peers.why_unproven(peer, 139, self.report(library, library, library))
        assert "not in the map" in build_peers.why_unproven(peer, 0, self.report(library, library, libc))
        assert build_peers.why_unproven(peer, 0, self.report(libc, library, library)).startswith("malloc: not from it")
        assert "aligned_alloc" in build_peers.why_unproven(peer, 0, self.report(library, libc, library))
        assert "not in the map" in build_peers.why_unproven(peer, 0, f"malloc {library}\n")

    def test_a_real_process(self, tmp_path):
        launcher, program = measure.build_launcher(tmp_path), build_peers.build_resolve(tmp_path)
        assert build_peers.prove(launcher, program, measure.Allocator("glibc", None)) == ""
        no_library = tmp_path / "libx.so"
        no_library.write_text("not a shared object")
        assert "not in the map" in build_peers.prove(launcher, program, measure.Allocator("x", no_library))

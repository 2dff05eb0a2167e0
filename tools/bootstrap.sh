#!/bin/bash
# bootstrap.sh [SET...]: installs the Debian packages that the named sets (below) need and the machine lacks, as root or
# through sudo. Says nothing when nothing is missing. The sets `real` and `bench-apps` are for machines that only test
# or measure: programs that nobody wants installed unasked, among them servers that Debian starts. The set `bench` also
# makes the Python environment of bench/run.py; `tools` and `test` make that of the `folio` command.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

build='cmake ninja-build g++ make python3'
declare -A sets=(
  [build]="$build"
  [test]="$build libgtest-dev pkg-config binutils python3-pytest python3-venv git libpython3.11-testsuite perl sqlite3
    xz-utils"
  [real]="gdb ghostscript nodejs redis-server chromium-headless-shell"
  [peers]="$build binutils libtcmalloc-minimal4 libtbbmalloc2"
  [bench]="$build libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 libtbbmalloc2 valgrind python3-venv binutils"
  [bench-apps]="ghostscript sqlite3 nodejs perl g++ z3 redis-server memcached libmemcached-tools
    nginx-light apache2-utils mariadb-server sysbench"
  [tsan]="$build libgtest-dev"
  [asan]="$build libgtest-dev"
  [clang]="$build libgtest-dev clang"
  [fuzz]="$build libgtest-dev clang libclang-rt-dev"
  [cross]="$build libgtest-dev g++-aarch64-linux-gnu qemu-user"
  [musl]="$build musl-tools"
  [tools]="$build python3-venv"
  [install]="$build python3-venv"
  [check]="$build libgtest-dev clang-format clang-tidy python3-venv shellcheck"
)
# Any cargo will do, and many have one that is not Debian's.
command -v cargo >/dev/null || sets[peers]+=' cargo'
ruff='ruff==0.14.5'

missing_packages() {
  local set package
  for set in "$@"; do
    [ -n "${sets[$set]:-}" ] || { echo "bootstrap.sh: no set \"$set\"; there are: ${!sets[*]}" >&2; exit 2; }
    for package in ${sets[$set]}; do
      [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done
  done | sort -u
}

install_packages() {
  local as_root=() apt
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "bootstrap.sh: needs root or sudo to install: $*" >&2; exit 1; }
    as_root=(sudo --preserve-env=DEBIAN_FRONTEND)
  fi
  apt=("${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300)
  echo "installing $*"
  # A bare machine has no package lists, an old one stale lists: both fail at the first try.
  "${apt[@]}" install --no-install-recommends "$@" >"$log" 2>&1 </dev/null && return
  "${apt[@]}" update >"$log" 2>&1 </dev/null || true
  "${apt[@]}" install --no-install-recommends "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; exit 1; }
}

install_ruff() {
  local venv=build/venv
  [ "$("$venv/bin/ruff" --version 2>/dev/null)" != "${ruff/==/ }" ] || return 0
  echo "installing ruff into $venv"
  { /usr/bin/python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "$ruff"; } >"$log" 2>&1 ||
    { cat "$log" >&2; exit 1; }
}

# Whether an environment is there that was made of this file, and in this place: its programs name it.
mark() { echo "$PWD/$1" >"$1/place" && cp "$2" "$1/"; }
is_there() { cmp -s "$2" "$1/$(basename "$2")" && [ "$(cat "$1/place" 2>/dev/null)" = "$PWD/$1" ]; }

install_laboratory() {
  local venv=build/venv-bench wanted=bench/requirements.txt
  is_there "$venv" "$wanted" && return
  echo "installing what bench/requirements.txt names into $venv"
  # The copy comes last: it says that the rest is complete.
  { /usr/bin/python3 -m venv --clear "$venv" && "$venv/bin/pip" install --quiet -r "$wanted" &&
    mark "$venv" "$wanted"; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}

# Editable: the command is always that of the sources.
install_tools() {
  local venv=build/venv-tools wanted=tools/pyproject.toml
  is_there "$venv" "$wanted" && return
  echo "installing the folio command and what $wanted names into $venv"
  { /usr/bin/python3 -m venv --clear "$venv" && "$venv/bin/pip" install --quiet --editable './tools[test]' &&
    mark "$venv" "$wanted"; } >"$log" 2>&1 || {
    echo "bootstrap.sh: the folio command's packages cannot be had from PyPI:" \
      "$(grep -m 1 ERROR "$log" || tail -n 1 "$log")" >&2
    exit 1
  }
}

cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
[ $# -gt 0 ] || set -- build

if ! command -v apt-get >/dev/null; then
  for set in "$@"; do echo "not a Debian: install what these packages hold yourself: ${sets[$set]}"; done
else
  packages=$(missing_packages "$@")
  # shellcheck disable=SC2086 # one word a package
  [ -z "$packages" ] || install_packages $packages
fi
case " $* " in *' check '*) install_ruff ;; esac
case " $* " in *' bench '*) install_laboratory ;; esac
case " $* " in *' tools '* | *' test '*) install_tools ;; esac

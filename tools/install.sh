#!/bin/bash
# install.sh [--without-command] PREFIX [BUILD]: what `make install` does after the build. Libraries, headers, packages,
# manual pages and documents by cmake; the folio command into an environment of its own, PREFIX/libexec/folio, which
# PREFIX/bin/folio leads to. With DESTDIR set, as packagers do, without the command: its paths would be the wrong ones.
# What was put there is listed in PREFIX/share/doc/folio/installed.txt, for uninstall.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
command=yes
[ "$1" != --without-command ] || { command=; shift; }
prefix=$(realpath -m "$1")
build=${2:-build}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

cmake --install "$build" --prefix "$prefix" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
list=${DESTDIR:-}$prefix/share/doc/folio/installed.txt
mkdir -p "$(dirname "$list")"
{ sed -n 's/^-- \(Installing\|Up-to-date\): //p' "$log" && echo "$list"; } | sed "s|^${DESTDIR:-}||" > "$list"
echo "installed under ${DESTDIR:-}$prefix; the list of files: $list"

if [ -n "$command" ] && [ -z "${DESTDIR:-}" ]; then
  environment=$prefix/libexec/folio
  if /usr/bin/python3 -m venv --clear "$environment" > "$log" 2>&1 &&
    "$environment/bin/pip" install --quiet './tools[top]' > "$log" 2>&1; then
    # What reads symbols has no package for some machines.
    "$environment/bin/pip" install --quiet './tools[top,profile]' > "$log" 2>&1 ||
      echo "install.sh: without folio profile, whose packages cannot be had: $(tail -n 1 "$log")" >&2
    mkdir -p "$prefix/bin"
    ln -sf "$environment/bin/folio" "$prefix/bin/folio"
    echo "the folio command: $prefix/bin/folio"
  else
    rm -rf "$environment"
    echo "install.sh: without the folio command, whose packages cannot be had from PyPI:" \
      "$(grep -m 1 ERROR "$log" || tail -n 1 "$log")" >&2
  fi
fi
if [ "$(id -u)" -eq 0 ] && [ -z "${DESTDIR:-}" ]; then ldconfig 2> /dev/null || true; fi
echo "next: LD_PRELOAD=$prefix/lib/libfolio.so.0 PROGRAM  (make uninstall PREFIX=$prefix takes all of it away again)"

#!/bin/bash
# preset.sh PRESET [TARGET]: configures and builds a preset of CMakePresets.json, or the target, saying little unless it
# fails. On a terminal one line shows how far the build is, elsewhere one a minute.
# The target `libraries` needs nothing that only the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
target=${2:-}
build=build
[ "$preset" = default ] || build=build-$preset
mkdir -p "$build"

# A build folder that was copied or moved here still names the place where it was made.
if [ -f "$build/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$build/CMakeCache.txt"; then
  echo "$build was made in another place: configured anew"
  rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles" "$build/build.ninja"
fi

# What went wrong, without the list of what went well.
fail() { grep -vE '^\[[0-9]+/[0-9]+\] ' "$1" >&2; exit 1; }

if [ "$target" != libraries ]; then
  cmake --preset "$preset" > "$build/configure.log" 2>&1 || fail "$build/configure.log"
elif [ ! -f "$build/build.ninja" ]; then
  cmake --preset "$preset" -DFOLIO_TESTS=OFF > "$build/configure.log" 2>&1 || fail "$build/configure.log"
fi
# Writes what ninja says to the log, and its count of steps to standard output if that is a terminal.
exec 3>&1
note_progress() {
  local line next=$((SECONDS + 60))
  while IFS= read -r line; do
    printf '%s\n' "$line"
    [[ $line =~ ^\[[0-9]+/[0-9]+\] ]] || continue
    if [ -t 3 ]; then
      printf '\r%s' "${BASH_REMATCH[0]}" >&3
    elif ((SECONDS >= next)); then
      printf '%s\n' "${BASH_REMATCH[0]}" >&3
      next=$((SECONDS + 60))
    fi
  done > "$build/build.log"
  if [ -t 3 ]; then echo >&3; fi
}

how_long=
[ -f "$build/.ninja_log" ] || how_long=': nothing is built yet, so it takes some minutes'
echo "building $build$how_long"
cmake --build --preset "$preset" ${target:+--target "$target"} 2>&1 | note_progress || fail "$build/build.log"
grep 'warning:' "$build/build.log" || true

#!/bin/bash
# preset.sh PRESET [TARGET]: configures and builds a preset of CMakePresets.json, or the target, saying little unless it
# fails.
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
echo "building $build"
cmake --build --preset "$preset" ${target:+--target "$target"} > "$build/build.log" 2>&1 || fail "$build/build.log"
grep 'warning:' "$build/build.log" || true

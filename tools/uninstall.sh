#!/bin/bash
# uninstall.sh PREFIX: takes away what install.sh has put under PREFIX, by the list that it left there, the folio
# command, and the folders that are empty then.
set -euo pipefail
prefix=$(realpath -m "$1")
list=$prefix/share/doc/folio/installed.txt
[ -f "$list" ] || { echo "uninstall.sh: nothing was installed under $prefix: there is no $list" >&2; exit 1; }
mapfile -t files < "$list"
gone=0
for file in "${files[@]}"; do
  case $file in "$prefix"/*) ;; *) continue ;; esac
  [ -f "$file" ] || [ -L "$file" ] || continue  # folders are in the list too
  rm -f "$file"
  gone=$((gone + 1))
done
if [ "$(readlink "$prefix/bin/folio")" = "$prefix/libexec/folio/bin/folio" ]; then rm -f "$prefix/bin/folio"; fi
rm -rf "$prefix/libexec/folio"
for file in "${files[@]}" "$prefix/bin/folio" "$prefix/libexec/folio"; do
  folder=$(dirname "$file")
  while [ "${folder#"$prefix"}" != "$folder" ] && rmdir "$folder" 2> /dev/null; do folder=$(dirname "$folder"); done
done
echo "$gone files taken away from $prefix"

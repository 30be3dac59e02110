#!/usr/bin/env bash
# Installs the named Debian packages that are missing; does nothing, and needs no rights, when none is.
set -euo pipefail

missing=()
for package in "$@"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "these Debian packages are missing, and there is neither root nor sudo to install them:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null; then
  echo "this is not a Debian system; install the equivalents of: ${missing[*]}" >&2
  exit 1
fi

echo "installing Debian packages: ${missing[*]}"
"${as_root[@]}" apt-get -q update </dev/null >/dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" </dev/null

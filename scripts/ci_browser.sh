#!/usr/bin/env bash
# Installs chromium and curl where they are missing and Debian's apt may be used. Never fails: the tests that need one
# of them say themselves that it is not there.
set -uo pipefail

missing=()
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing+=(chromium)
command -v curl >/dev/null || missing+=(curl)
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "ci: ${missing[*]} not installed (needs root and apt-get); tests that need it will be skipped"
    exit 0
fi
echo "ci: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
if timeout 60 apt-get -qq update >/dev/null && timeout 240 apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "ci: ${missing[*]} installed"
else
    echo "ci: ${missing[*]} could not be installed; tests that need it will be skipped"
fi
exit 0

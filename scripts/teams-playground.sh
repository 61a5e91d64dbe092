#!/usr/bin/env bash
# Installs Microsoft's agents playground, which simulates Teams, into build/teams-playground, for the tests of Teams.
#
#   scripts/teams-playground.sh [DIRECTORY]
exec "$(dirname "${BASH_SOURCE[0]}")/node-packages.sh" teams-playground "$@"

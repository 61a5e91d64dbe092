#!/usr/bin/env bash
# Puts Microsoft's agents playground, which plays Teams, into build/teams-playground, for the tests of Teams.
#
#   scripts/teams-playground.sh [DIRECTORY]
exec "$(dirname "${BASH_SOURCE[0]}")/node-packages.sh" teams-playground "$@"

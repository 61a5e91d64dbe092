#!/usr/bin/env bash
# Installs the reference servers of the Model Context Protocol into build/mcp-servers, for the tests of MCP.
#
#   scripts/mcp-servers.sh [DIRECTORY]
exec "$(dirname "${BASH_SOURCE[0]}")/node-packages.sh" mcp-servers "$@"

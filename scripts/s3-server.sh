#!/usr/bin/env bash
# Installs an S3-compatible server (only the S3 part of moto) into build/s3-server, for the tests of the object store.
exec "$(dirname "${BASH_SOURCE[0]}")/counterpart.sh" s3-server

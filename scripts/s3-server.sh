#!/usr/bin/env bash
# Puts an S3-compatible server (moto, its S3 part only) into build/s3-server, for the tests of the object store.
exec "$(dirname "${BASH_SOURCE[0]}")/counterpart.sh" s3-server

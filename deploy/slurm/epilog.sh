#!/bin/bash
# Slurm Epilog: ends the daemon with the last job of the node; what it has cached stays. May run for several jobs at once,
# and again for the same one.
set -euo pipefail

: "${SLURM_JOB_ID:?is set by Slurm}"
forebay=${FOREBAY_PROGRAM:-/opt/forebay/bin/forebay}
jobs=${FOREBAY_JOBS_DIR:-/run/forebay-jobs}
socket=${FOREBAY_SOCKET:-/run/forebay/forebay.sock}

mkdir -p "$jobs"
exec 9> "$jobs.lock"
flock 9
rm -f "$jobs/$SLURM_JOB_ID"
if [ -z "$(ls -A "$jobs")" ] && "$forebay" health --address "unix:$socket" > /dev/null 2>&1; then
    "$forebay" stop --address "unix:$socket" --wait-seconds 60 9>&-
fi

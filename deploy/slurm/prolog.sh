#!/bin/bash
# Slurm Prolog: the job finds a daemon on its node. Runs as root before each job; may run for several jobs at once, and
# again for the same one. Where the machine runs forebay.service all the time, neither this nor the epilog is needed.
#
# A daemon that cannot be started does not drain the node: trainers then start one of their own. FOREBAY_REQUIRED=1
# makes it an error.
set -euo pipefail

: "${SLURM_JOB_ID:?is set by Slurm}"
forebay=${FOREBAY_PROGRAM:-/opt/forebay/bin/forebay}
jobs=${FOREBAY_JOBS_DIR:-/run/forebay-jobs}
socket=${FOREBAY_SOCKET:-/run/forebay/forebay.sock}
log=${FOREBAY_LOG:-/var/log/forebay.log}

serves() { "$forebay" health --address "unix:$socket" > /dev/null 2>&1; }

start() {
    # Its own session, and none of this script's descriptors: it outlives the prolog and holds no lock of it.
    setsid "$forebay" serve --socket "$socket" < /dev/null >> "$log" 2>&1 9>&- &
    local daemon=$!
    for _ in $(seq 60); do
        if serves; then return 0; fi
        if ! kill -0 "$daemon" 2> /dev/null; then return 1; fi
        sleep 0.5
    done
    return 1
}

mkdir -p "$jobs"
exec 9> "$jobs.lock"
flock 9
touch "$jobs/$SLURM_JOB_ID"
if ! serves && ! start; then
    echo "forebay does not serve on $socket; its log is $log" >&2
    [ "${FOREBAY_REQUIRED:-0}" = 0 ]
fi

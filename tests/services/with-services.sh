#!/bin/sh
# Runs a command with a real PostgreSQL and a real S3 server beside it:
#
#   tests/services/with-services.sh cargo nextest run contract
#   tests/services/with-services.sh bash
#
# Both listen on free loopback ports and keep their files in a temporary
# directory. When the command ends, however it ends, both are gone. Several of
# these can run side by side. The command finds the services by the variables
# exported below; psql and pgbench are on its PATH.
# shellcheck disable=SC2317,SC2329 # functions that only traps or `wait_for` call
set -eu

if [ $# = 0 ]; then
    echo "usage: $0 COMMAND..." >&2
    exit 2
fi

here=$(cd "$(dirname "$0")" && pwd)
tool=$here/../../.ci/tool.sh
"$tool" python3 >/dev/null
"$tool" curl >/dev/null
weed=$("$tool" weed)
postgres=$("$tool" postgres)

# Nothing of the caller's own set-up, and a new secret each time: then another
# run's server on our port refuses us.
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3
AWS_SECRET_ACCESS_KEY=$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
export AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID=turnkeep AWS_REGION=us-east-1
export AWS_EC2_METADATA_DISABLED=true
export TURNKEEP_TEST_S3_BUCKET=turnkeep-test
export PATH="$postgres:$PATH"

# PostgreSQL refuses to run as root.
as_postgres="env"
if [ "$(id -u)" = 0 ]; then
    as_postgres="setpriv --reuid=postgres --regid=postgres --init-groups"
fi

# Each server is in a session of its own, so that Ctrl-C does not reach it
# before the tests have ended; and all of them die with this shell, even if it is
# killed (`pdeathsig`).

# shellcheck disable=SC2086 # as_postgres is several words
start_postgres() {
    $as_postgres setpriv --pdeathsig=QUIT setsid env --chdir="$dir/postgres" \
        "$postgres/postgres" -D "$dir/postgres" -p "$1" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
        -c fsync=on -c max_connections=200 \
        >"$dir/postgres.log" 2>&1 &
    postgres_pid=$!
    export TURNKEEP_TEST_POSTGRES="postgres://postgres@127.0.0.1:$1/postgres"
}

start_s3() {
    HOME=$dir/s3 setpriv --pdeathsig=KILL setsid env --chdir="$dir/s3" \
        "$weed/weed" -logtostderr=true mini -dir="$dir/s3" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
        -s3.port="$1" -s3.localSocket="$dir/s3/s3.sock" \
        -master.port="$(($1 + 1))" -master.telemetry=false -volume.port="$(($1 + 2))" \
        -filer.port="$(($1 + 3))" -filer.localSocket="$dir/s3/filer.sock" \
        -admin.port="$(($1 + 4))" -admin.ui=false \
        -webdav=false -s3.port.iceberg=0 -s3.port.lance=0 \
        -bucket="$TURNKEEP_TEST_S3_BUCKET" \
        >"$dir/s3.log" 2>&1 &
    s3_pid=$!
    export TURNKEEP_TEST_S3_ENDPOINT="http://127.0.0.1:$1"
}

# The server itself says in our own directory that it is ready.
postgres_is_ready() {
    grep -q '^ready' "$dir/postgres/postmaster.pid"
}

# Lists the bucket, which says that it is there and that the server is ours.
s3_is_ready() {
    curl --silent --fail --output /dev/null --noproxy '*' --max-time 5 \
        --aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" \
        "$TURNKEEP_TEST_S3_ENDPOINT/$TURNKEEP_TEST_S3_BUCKET"
}

# wait_for PID CHECK: until the check succeeds; fails after 60 seconds, or when
# the server has died.
wait_for() {
    deadline=$(($(date +%s) + 60))
    until "$2" 2>/dev/null; do
        sleep 0.1
        kill -0 "$1" 2>/dev/null || return 1
        [ "$(date +%s)" -lt "$deadline" ] || return 1
    done
}

start_servers() {
    port=$(python3 "$here/free_ports.py") || return 1
    start_s3 "$port"
    start_postgres "$((port + 5))"
    wait_for "$postgres_pid" postgres_is_ready && wait_for "$s3_pid" s3_is_ready
}

stop_servers() {
    if [ -n "$postgres_pid" ]; then kill -QUIT "$postgres_pid" 2>/dev/null || :; fi
    if [ -n "$s3_pid" ]; then kill -KILL "$s3_pid" 2>/dev/null || :; fi
    wait
    # SeaweedFS puts these where no flag moves them. All ten of a block are ours.
    for offset in 0 1 2 3 4 5 6 7 8 9; do
        rm -f "/tmp/seaweedfs-"*"-grpc-$((port + 10000 + offset)).sock"
    done
    postgres_pid='' s3_pid=''
}

# signal_tree SIGNAL PID: to a process and all that it started. cargo, for one,
# leaves its tests to themselves when it is told to end.
# shellcheck disable=SC2013 # the file has one line of many words
signal_tree() {
    for child in $(cat "/proc/$2/task/"*/children 2>/dev/null); do
        signal_tree "$1" "$child"
    done
    kill "-$1" "$2" 2>/dev/null || :
}

stop() {
    trap '' HUP INT TERM
    if [ -n "$command_pid" ]; then
        signal_tree TERM "$command_pid"
        tenths=50
        while [ "$tenths" -gt 0 ] && kill -0 "$command_pid" 2>/dev/null; do
            sleep 0.1
            tenths=$((tenths - 1))
        done
        signal_tree KILL "$command_pid"
    fi
    stop_servers
    rm -rf "$dir"
}

port=0 postgres_pid='' s3_pid='' command_pid=''
dir=$(mktemp -d "${TMPDIR:-/tmp}/turnkeep-services.XXXXXX")
trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

chmod 711 "$dir"
mkdir "$dir/s3" "$dir/postgres" "$dir/tmp"
if [ "$(id -u)" = 0 ]; then chown postgres: "$dir/postgres"; fi
# shellcheck disable=SC2086
if ! $as_postgres env --chdir="$dir/postgres" "$postgres/initdb" -D "$dir/postgres" \
    -U postgres --auth=trust -E UTF8 --locale=C.UTF-8 --no-sync >"$dir/initdb.log" 2>&1; then
    cat "$dir/initdb.log" >&2
    exit 1
fi

# A port may be taken between our look and the server's.
attempts=3
until start_servers; do
    stop_servers
    attempts=$((attempts - 1))
    if [ "$attempts" = 0 ]; then
        tail -n 20 "$dir/postgres.log" "$dir/s3.log" >&2
        echo "the services for the tests did not start" >&2
        exit 1
    fi
done
echo "services: PostgreSQL on 127.0.0.1:$((port + 5)), S3 on 127.0.0.1:$port" >&2

# What a test that was cut short leaves behind goes with our directory.
export TMPDIR="$dir/tmp"

# In the background, so that a signal is dealt with at once; yet with our
# standard input and with Ctrl-C, both of which the shell would take from it.
exec 3<&0
setpriv --pdeathsig=HUP env --default-signal=INT,QUIT "$@" <&3 3<&- &
command_pid=$!
status=0
wait "$command_pid" || status=$?
command_pid=''
exit "$status"

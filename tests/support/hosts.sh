#!/bin/bash
# Machines that share nothing but a network, on one machine: each in namespaces of its own (PID,
# network, mount, IPC, UTS), with its own home, /tmp, /run and /dev/shm, its own sshd, and an
# address on one bridge. They share no disk; what they see of it is what was installed there.
#
#   hosts.sh FOLDER NAME=ADDRESS ... -- COMMAND ...
#
# COMMAND runs on one more such machine, `laptop`, whose key opens the others. It alone has
# FOLDER/mnt, at /mnt; all have it if HOSTS_SHARE is set. HOSTS_RUN is another server than sshd.
# When COMMAND ends, or this is killed, all is gone. Needs root, sshd, ip.
set -eu

if [ "${1:-}" = --host ]; then  # inside the namespaces of a machine
    folder=$2 name=$3
    hostname "$name"
    ip link set lo up
    mount -t tmpfs tmpfs /dev/shm -o size=4g
    mount -t tmpfs tmpfs /run
    mkdir -p "$folder/$name/tmp" /run/sshd /run/home /run/work
    cp -r "$folder/ssh" /run/ssh
    [ "$name" != laptop -a -z "${HOSTS_SHARE:-}" ] || mount --bind "$folder/mnt" /mnt
    # over the real one, which may hold the Python that all of them run
    mount -t overlay overlay "$HOME" -o "lowerdir=$HOME,upperdir=/run/home,workdir=/run/work"
    for hidden in .ssh .ray; do
        mkdir -p "$HOME/$hidden"
        mount -t tmpfs tmpfs "$HOME/$hidden" -o mode=700
    done
    cp /run/ssh/key.pub "$HOME/.ssh/authorized_keys"
    [ "$name" != laptop ] || cp /run/ssh/key "$HOME/.ssh/lp-sweep.pem"
    project=$(realpath "$(dirname "$0")/..")  # the Python that all of them run may be below /tmp
    case "$project" in /tmp/*)
        mkdir -p "$folder/$name$project"
        mount --bind "$project" "$folder/$name$project"
    esac
    mount --rbind "$folder/$name/tmp" /tmp
    cd "$HOME"
    touch /run/ready
    shift 3
    exec "$@"
fi

folder=$(realpath "$1"); shift
hosts=()
while [ "$1" != -- ]; do hosts+=("$1"); shift; done
shift

if [ -z "${LP_SWEEP_HOSTS:-}" ]; then  # a network and processes that nobody else sees
    export LP_SWEEP_HOSTS=1
    exec unshare --pid --net --mount --ipc --fork --kill-child --mount-proc \
        "$0" "$folder" "${hosts[@]}" -- "$@"
fi

mount -t tmpfs tmpfs /run
mkdir -p "$folder/ssh" "$folder/mnt" /run/netns
ssh-keygen -q -t ed25519 -N '' -f "$folder/ssh/key"
ssh-keygen -q -t ed25519 -N '' -f "$folder/ssh/host"
cat > "$folder/ssh/sshd_config" <<'EOF'
HostKey /run/ssh/host
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication no
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
EOF
ip link set lo up
ip link add bridge0 type bridge
ip link set bridge0 up

plug() {  # NAME ADDRESS
    ip netns add "$1"
    ip link add "to-$1" type veth peer name eth0 netns "$1"
    ip link set "to-$1" master bridge0 up
    ip -n "$1" address add "$2/24" dev eth0
    ip -n "$1" link set eth0 up
}

machine() {  # NAME COMMAND ...
    local name=$1
    shift
    nsenter --net="/run/netns/$name" unshare --pid --mount --ipc --uts --fork --kill-child --mount-proc \
        "$0" --host "$folder" "$name" "$@"
}

for host in "${hosts[@]}"; do
    plug "${host%%=*}" "${host#*=}"
    machine "${host%%=*}" ${HOSTS_RUN:-/usr/sbin/sshd -D -e -f /run/ssh/sshd_config} \
        > "$folder/${host%%=*}.log" 2>&1 &
done
first=${hosts[0]#*=}
plug laptop "${first%.*}.254"
machine laptop "$@"

#!/bin/bash
# Makes a machine of the network namespace that it is started in: with mounts and
# processes of its own, which go when this, its first process, ends.
#
#   machine.sh DIR CGROUP
#
# DIR is the machine's; it is seen from both sides, with what is beside it. CGROUP is the cgroup that its
# pods are in, below the root of every hierarchy.
set -euo pipefail
dir=$1 cgroup=$2

if [ "${3:-}" != inside ]; then
	# The hierarchies' own mounts are kept: they are the whole machine's, as they
	# are for kubelets in containers.
	exec unshare --mount --propagation slave --pid --fork --kill-child=SIGKILL "$0" "$dir" "$cgroup" inside
fi

# /proc is still that of the parent, with this process's id there.
read -r pid _ </proc/self/stat

# Kubelet wants to share mounts with containers.
mount --make-rshared /
mount -t proc proc /proc

# Kubelet sets these. They are the whole machine's, so it gets files in their
# place.
for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
	kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	file=$dir/sysctl.${key//\//.}
	cat "/proc/sys/$key" >"$file"
	mount --bind "$file" "/proc/sys/$key"
done

# What containerd, kubelet and plug-ins write is below these two. As on any
# machine, /var outlives a boot and /run does not. DIR itself may be below /run,
# and must stay.
lab=$(dirname "$dir")
mkdir -p "$dir/run" "$dir/var"/{lib,log,tmp,cache}
mount -t tmpfs -o mode=755 run "$dir/run"
case $lab in /run/*)
	mkdir -p "$dir$lab"
	mount --bind "$lab" "$dir$lab"
	;;
esac
mount --rbind "$dir/run" /run
ln -sfn /run "$dir/var/run"
mount --bind "$dir/var" /var

# A new cpuset may use no CPU until its CPUs are set.
for hierarchy in /sys/fs/cgroup/*; do
	mkdir "$hierarchy/$cgroup"
	for file in cpuset.cpus cpuset.mems; do
		if [ -e "$hierarchy/$file" ]; then cat "$hierarchy/$file" >"$hierarchy/$cgroup/$file"; fi
	done
done

# Moved into place, so that a waiting process reads it whole.
echo "$pid" >"$dir/pid.new"
mv "$dir/pid.new" "$dir/pid"

# The first process of a machine inherits orphans. A shell that waits buries them.
while :; do
	sleep infinity &
	wait $!
done

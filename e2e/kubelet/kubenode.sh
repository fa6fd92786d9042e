#!/bin/bash
# Turns the network namespace that it runs in into a node with its own mounts and
# processes. They end with this script, its first process.
#
#   kubenode.sh DIR CGROUP
#
# DIR is the node's directory; it and its siblings are visible inside and outside. CGROUP is
# the cgroup of its pods, below the root of every hierarchy.
set -euo pipefail
dir=$1 cgroup=$2

if [ "${3:-}" != inside ]; then
	# The hierarchies' mounts are shared with the host, as for kubelets in containers.
	exec unshare --mount --propagation slave --pid --fork --kill-child=SIGKILL "$0" "$dir" "$cgroup" inside
fi

# /proc is still the parent's, so it shows this process's ID outside.
read -r pid _ </proc/self/stat

# Kubelet shares mounts with containers.
mount --make-rshared /
mount -t proc proc /proc

# Kubelet sets these sysctls. They belong to the host, so it gets files instead.
for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
	kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	file=$dir/sysctl.${key//\//.}
	cat "/proc/sys/$key" >"$file"
	mount --bind "$file" "/proc/sys/$key"
done

# containerd, kubelet and plug-ins write below these two. As on any host, /var
# survives a reboot and /run does not. DIR itself may be below /run and must stay.
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

# A new cpuset has no CPUs.
for hierarchy in /sys/fs/cgroup/*; do
	mkdir "$hierarchy/$cgroup"
	for file in cpuset.cpus cpuset.mems; do
		if [ -e "$hierarchy/$file" ]; then cat "$hierarchy/$file" >"$hierarchy/$cgroup/$file"; fi
	done
done

# The rename makes a waiting process read a complete file.
echo "$pid" >"$dir/pid.new"
mv "$dir/pid.new" "$dir/pid"

# The first process of a node inherits orphans; the waiting shell reaps them.
while :; do
	sleep infinity &
	wait $!
done

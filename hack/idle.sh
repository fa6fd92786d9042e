#!/usr/bin/env bash
# Runs a command in the time of the processors that no other process wants. It stands beside tests
# that measure delays: these wait most of the time, and the kernel interrupts this command at once
# when they do not.
#
#   idle.sh COMMAND [ARGUMENT...]
#
# The command has a session and a process group of its own: kill -- -PID ends it with its children.
set -uo pipefail
if [[ -z ${FANFARE_IDLE:-} ]]; then
	FANFARE_IDLE=1 exec setsid --wait "$0" "$@"
fi

# A control group that is idle comes after all others; that needs root. The class of single processes
# counts only within their session, where the kernel first shares time among sessions.
for controller in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
	group=$controller/fanfare-idle-$$
	mkdir "$group" 2>/dev/null || continue
	trap 'echo $$ >"$controller/cgroup.procs"; rmdir "$group"' EXIT
	echo 1 2>/dev/null >"$group/cpu.idle" && echo $$ 2>/dev/null >"$group/cgroup.procs" && break
	rmdir "$group"
	trap - EXIT
done
chrt --idle 0 "$@"

#!/usr/bin/env bash
# Runs a command in the time of the processors that no other process wants. It stands beside tests
# that measure delays: these wait most of the time, and the kernel interrupts this command at once
# when they do not.
#
#   idle.sh COMMAND [ARGUMENT...]
set -euo pipefail
if [[ -z ${FANFARE_IDLE:-} ]]; then
	# The kernel first shares time among sessions, equally (sched_autogroup), so that the command
	# needs one of its own.
	FANFARE_IDLE=1 exec setsid --wait "$0" "$@"
fi
echo 19 2>/dev/null >/proc/self/autogroup || true # a kernel without that does not share by session
exec chrt --idle 0 "$@"

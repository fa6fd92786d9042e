package fastpath

// The compiler is named with its version: another one writes another object.
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel,bpfeb -no-global-types -type address -type backend -type tuple -type flow -type frontend -type choice -type place -type slot -type prefix -type usage -type datagram -type first kernel flow.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror

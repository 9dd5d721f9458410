#!/usr/bin/env bash
# The Triton kernels on a CUDA device: correctness, then times beside copies and peers. Under ten minutes; prints Markdown.
#     benchmarks/gpu.sh [--tiles] [--seconds 0.3]          PYTHON=... chooses the interpreter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset TRITON_INTERPRET
exec timeout 590 "${PYTHON:-python3}" benchmarks/gpu.py "$@"

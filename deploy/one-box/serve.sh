#!/usr/bin/env bash
# One vLLM server a GPU behind vllm-router, on one machine: bash serve.sh MODEL [NUM_GPUS]
# Then: stepward label problems.jsonl --policy vllm_server:http://127.0.0.1:8000/v1 --out labels
#
# sticky_least_loaded keeps each session (a problem's id, sent as x-session-id) on the server that it began on, and
# gives a new session to the server with the least to do: prefixes stay in one cache and the load stays even.
set -euo pipefail
model=${1:?usage: serve.sh MODEL [NUM_GPUS]}
num_gpus=${2:-$(nvidia-smi --list-gpus | wc -l)}
first_port=${FIRST_PORT:-8100}
router_port=${ROUTER_PORT:-8000}

pids=() urls=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT INT TERM

for ((gpu = 0; gpu < num_gpus; gpu++)); do
  port=$((first_port + gpu))
  # --generation-config vllm: no sampler of the checkpoint's own stands behind the one that is sent.
  CUDA_VISIBLE_DEVICES=$gpu vllm serve "$model" --host 127.0.0.1 --port "$port" \
    --enable-prefix-caching --max-num-seqs 512 --gpu-memory-utilization 0.92 --generation-config vllm \
    >"vllm-$gpu.log" 2>&1 &
  pids+=($!) urls+=("http://127.0.0.1:$port")
done

vllm-router --host 127.0.0.1 --port "$router_port" --policy sticky_least_loaded --worker-urls "${urls[@]}" \
  --worker-startup-timeout-secs 1200 --request-timeout-secs 1800 &
pids+=($!)
# The first that ends takes the others with it: half a router is worse than none.
wait -n

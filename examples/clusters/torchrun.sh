#!/bin/sh
# torchrun: run it on each host, with the number of hosts, the number of this host from 0, and an
# address of host 0.
# Usage: torchrun.sh HOSTS NUMBER ADDRESS
#
# torchrun reads options of lockstep that are the beginning of its own, such as --log, as its own:
# write them into a config file, and give --config FILE.
hosts=$1
number=$2
address=$3

# The same file on all hosts: lockstep key lockstep.key makes it, scp copies it.
export LOCKSTEP_JOB_KEY_FILE="$PWD/lockstep.key"

torchrun --no-python --nnodes "$hosts" --node-rank "$number" --nproc-per-node "${WORKERS:-8}" \
    --master-addr "$address" --master-port "${PORT:-29500}" \
    lockstep train gpt --data text:book.txt --global-batch 32 --micro-batch 1 \
    --virtual-workers 32 --steps "${STEPS:-5000}" --lr 1e-3 --checkpoint run1 \
    --checkpoint-every 100 --resume=auto

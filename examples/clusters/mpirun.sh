#!/bin/sh
# mpirun of Open MPI: N workers on the hosts of a hostfile, which is optional.
# Usage: mpirun.sh N [HOSTFILE]
workers=$1
hostfile=$2

# The file must be on a file system that all hosts share.
export LOCKSTEP_JOB_KEY_FILE="$PWD/lockstep.key"
[ -e "$LOCKSTEP_JOB_KEY_FILE" ] || lockstep key "$LOCKSTEP_JOB_KEY_FILE" || exit

# Rank 0 is on the first host of the file.  The port must be free there.
MASTER_ADDR=localhost
[ -z "$hostfile" ] || MASTER_ADDR=$(awk '!/^#/ { print $1; exit }' "$hostfile")
export MASTER_ADDR MASTER_PORT=29400

# After SIGTERM the run has 60 s to save.
mpirun -n "$workers" ${hostfile:+--hostfile "$hostfile"} --map-by slot \
    --mca odls_base_sigkill_timeout 60 \
    -x LOCKSTEP_JOB_KEY_FILE -x MASTER_ADDR -x MASTER_PORT \
    lockstep train gpt --data text:book.txt --global-batch 32 --micro-batch 1 \
    --virtual-workers 32 --steps "${STEPS:-5000}" --lr 1e-3 --checkpoint run1 \
    --checkpoint-every 100 --resume=auto

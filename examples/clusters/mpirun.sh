#!/bin/sh
# mpirun of Open MPI: N workers on the hosts of a hostfile, which is optional.  MPI carries all bytes
# between the hosts.
# Usage: mpirun.sh N [HOSTFILE]
workers=$1
hostfile=$2

# After SIGTERM, mpirun waits 10 s, forwards it to the workers, and gives them 10 s to save.
mpirun -n "$workers" ${hostfile:+--hostfile "$hostfile"} --map-by slot \
    --mca odls_base_sigkill_timeout 10 \
    lockstep train gpt --data text:book.txt --global-batch 32 --micro-batch 1 \
    --virtual-workers 32 --steps "${STEPS:-5000}" --lr 1e-3 --checkpoint run1 \
    --checkpoint-every 100 --resume=auto --mpi

#!/bin/bash
# A Slurm of one node on this machine, and a command in it: `tools/slurm_single_node.sh attnbench run … --executor slurm`.
# Needs root and `apt-get install slurm-wlm munge`; everything it starts ends with it, and /etc is left as it is.
# The node has no cgroups (proctrack/linuxproc, task/none), so that it runs in a container, and no accounting.
set -eu
folder=$(mktemp -d -t slurm-XXXXXX)
chmod 755 "$folder"
node=$(hostname -s)
cpus=$(nproc --all)
memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
export SLURM_CONF=$folder/slurm.conf

cat > "$SLURM_CONF" <<CONF
ClusterName=single
SlurmctldHost=$node
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmctldPort=26817
SlurmdPort=26818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobRequeue=1
MinJobAge=10
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
printf "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" > "$folder/cgroup.conf"
mkdir -p "$folder/state" "$folder/spool"
dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 status=none
chmod 400 "$folder/munge.key"

stop() {
    scancel --user="$(id -u)" 2>/dev/null || true
    sleep 1
    for name in slurmd slurmctld munged; do
        if [ -s "$folder/$name.pid" ]; then kill "$(cat "$folder/$name.pid")" 2>/dev/null || true; fi
    done
    sleep 1
    if [ -z "${KEEP:-}" ]; then rm -rf "$folder"; else echo "logs are in $folder" >&2; fi
}
trap stop EXIT
trap "exit 130" INT TERM

munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
    --seed-file="$folder/munge.seed" --log-file="$folder/munged.log"
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF" -N "$node"
for _ in $(seq 60); do
    if sinfo --noheader --format=%t 2>/dev/null | grep -qE "idle|mix|alloc"; then break; fi
    sleep 1
done
sinfo
"$@"

#!/usr/bin/env bash
# One task per node, inside the container where there is one: sees the shared directory, starts Ray, and on the first
# node runs the driver. Called by lib.sh through srun; arguments are the run's overrides.
#
# Files in ATTEMPT_DIR:  canary (before us)   ray-address, complete, refused, driver.exit, ended (from the first node)
#                        dump, end (from the batch script)   stacks-NODE.txt (answer to dump)
# There is no `set -e`: a line to a full disk must not end a healthy run.
set -uo pipefail

me=${SLURMD_NODENAME:?node.sh is started by srun}
read -ra nodes <<<"${NODE_NAMES:?set by lib.sh}"
head=${nodes[0]}
dir=${ATTEMPT_DIR:?set by lib.sh}
children=() TERMINATED='' MADE_RAY_FOLDER='' MADE_TMPDIR='' RAY_PID='' RAY_GONE=''
: "${HEALTH:=1}" "${GPUS_PER_NODE:=0}" "${PREEMPT_SECONDS:=25}" "${WORKING_FOLDER:=$PWD}"

say() { echo "[$(date '+%F %T') $me] $*"; }
dry() { [[ ${DRY_RUN:-0} == 1 ]]; }
nap() { sleep "$1" & wait $! || true; }
put() { echo "$2" >"$dir/$1.tmp.$me" && mv "$dir/$1.tmp.$me" "$dir/$1"; }

refuse() {  # a cause that another attempt would meet again
  say "error: $*" >&2
  put refused "$me: $*" 2>/dev/null || true
  exit 1
}

ours() {  # ids of Ray's and the driver's processes, also those that left our process tree: they carry the mark
  grep -lzxF "$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true
}

end_ours() {
  local pid round
  for pid in "${children[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for round in $(seq 10); do
    if [[ -z $(ours) ]]; then return 0; fi  # without the 0 a trap would return what it interrupted, and `leave` end here
    if ((round == 5)); then for pid in $(ours); do kill -TERM "$pid" 2>/dev/null || true; done; fi
    sleep 1
  done
  for pid in $(ours); do kill -KILL "$pid" 2>/dev/null || true; done
}

dump_stacks() {
  local pid parts dumps=()
  parts=$(mktemp -d)
  for pid in $(ours); do
    {
      echo "## $pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"
      timeout 20 py-spy dump --pid "$pid"
    } >"$parts/$pid" 2>&1 &
    dumps+=($!)
  done
  wait "${dumps[@]}" || true
  {
    echo "# $me, $(date '+%F %T')"
    command -v py-spy >/dev/null || echo "# py-spy is not in the PATH of this node: command lines only"
    cat "$parts"/* 2>/dev/null || true
  } >"$dir/stacks.$me"
  mv "$dir/stacks.$me" "$dir/stacks-$me.txt"
  rm -rf "$parts"
}

attend() {  # attend PID: until it ends (its exit code), or the batch script wants the end (143)
  local dumped=0
  while kill -0 "$1" 2>/dev/null; do
    if [[ -e $dir/dump && $dumped == 0 ]]; then dumped=1; dump_stacks; fi
    if [[ -e $dir/end ]]; then say "asked to end"; return 143; fi
    if [[ -n $TERMINATED ]] && ((SECONDS - TERMINATED > PREEMPT_SECONDS)); then say "not saved in time"; return 143; fi
    if [[ -n $RAY_PID && $1 != "$RAY_PID" && -z $RAY_GONE ]] && ! kill -0 "$RAY_PID" 2>/dev/null; then RAY_GONE=$SECONDS; say "error: Ray ended on $me while the run went on"; fi
    if [[ -n $RAY_GONE ]] && ((SECONDS - RAY_GONE > 10)); then return 143; fi  # the driver itself may not notice for minutes
    if [[ $me != "$head" && -e $dir/ended ]]; then return 0; fi
    nap 1
  done
  wait "$1"
}

health() { env "$mark" SLURM_NODE="$me" "$PYTHON" "$NEMO_ADA_HOME/slurm/health.py" "$@"; }

check_health() {  # before Ray: what would cost an hour to find out during a run
  ((HEALTH && GPUS_PER_NODE)) || return 0
  if dry; then echo "+ check of the node: $GPUS_PER_NODE GPUs, free memory, Xid, $MIN_TMP_GIB GiB in /tmp, one all-reduce, and ECC after the run"; return; fi
  command -v "$PYTHON" >/dev/null || refuse "there is no $PYTHON on $me: wrong CONTAINER, or NODE_SETUP does not activate the environment"
  health before || exit 1
  health links "$(address)" || exit 1
}

check_shared() {
  local waited=0
  until [[ -r $dir/canary ]]; do
    if ((waited >= SHARED_SECONDS)); then
      refuse "node $me does not see $dir: RUN_ROOT must be on a file system that all nodes share (and mount in MOUNTS)"
    fi
    nap 1
    waited=$((waited + 1))
  done
}

ADDRESS='import fcntl, socket, struct, sys
interface, other = sys.argv[1:]
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if not interface:
    probe.connect((other, 9))  # sends nothing
    print(probe.getsockname()[0])
elif interface in (here := [name for _, name in socket.if_nameindex()]):
    print(socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, struct.pack("256s", interface.encode()[:15]))[20:24]))
else: sys.exit("here are " + ", ".join(here))'

address() {  # this node's address as other nodes reach it: RAY_INTERFACE's, its name's, that of the way to another node, its first one
  local found other
  if [[ -n ${RAY_INTERFACE:-} ]]; then
    found=$("$PYTHON" -I -c "$ADDRESS" "$RAY_INTERFACE" '' 2>&1) || refuse "RAY_INTERFACE=$RAY_INTERFACE has no IPv4 address on $me: ${found##*$'\n'}"
    echo "$found"
    return
  fi
  for other in "${nodes[@]}"; do [[ $other == "$me" ]] || break; done
  found=$({ getent ahostsv4 "$me" | awk '{ print $1 }'; "$PYTHON" -I -c "$ADDRESS" '' "$other" 2>/dev/null; hostname -I | tr ' ' '\n'; } | grep -E '^[0-9.]+$')
  # 127.* is the node alone, and 172.17.* is docker's bridge on every node
  { grep -vE '^(127|172\.17)\.' <<<"$found" || grep -v '^127\.' <<<"$found" || echo "$found"; } | head -n 1
}

free_port() {  # the first free one of the ten from $1 on
  local port
  for port in $(seq "$1" "$(($1 + 9))"); do
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
  done
  return 1
}

resources() { printf '{"worker_units": %d, "slurm_managed_ray_cluster": 1, "topo_rank": %d, "slurm_node:%s": 1}' "$GPUS_PER_NODE" "$1" "$me"; }

private() {  # make a folder that no other user can enter; several nodes of one machine may share it
  mkdir -m 700 "$1" 2>/dev/null || [[ -d $1 && -O $1 && ! -L $1 && $(stat -c %a "$1") == 700 ]]
}

own_temporary() {  # a private TMPDIR: libraries keep compiled code below it, under names that anyone can guess
  local most=41  # characters, so that vLLM's sockets have 107 at most
  # It has one name on all nodes, because NeMo-RL gives the workers the driver's.
  if [[ -n ${TMPDIR:-} ]]; then
    if ((${#TMPDIR} <= most)) && private "$TMPDIR/${RAY_FOLDER##*/}"; then MADE_TMPDIR=$TMPDIR/${RAY_FOLDER##*/}
    else say "warning: TMPDIR=$TMPDIR is not used: it has more than $most characters or cannot be written on $me"; fi
  fi
  if [[ -z $MADE_TMPDIR ]]; then private "$RAY_FOLDER/t"; fi
  export TMPDIR=${MADE_TMPDIR:-$RAY_FOLDER/t}
}

keep_starting() {  # keep_starting WORDS...: `ray start`, again until RAY_SECONDS: a slow image or disk makes a try fail
  local last=$((SECONDS + RAY_SECONDS)) pid child=''
  trap 'kill -TERM "$child" 2>/dev/null; exit 143' TERM
  while true; do
    (cd "$RAY_FOLDER" && exec env "$mark" ray start "$@") &  # its workers stand where it does: libraries find nothing there
    child=$!
    wait "$child"
    local code=$?
    if [[ -e $dir/complete || -e $dir/ended || -e $dir/end ]] || ((SECONDS >= last)); then exit "$code"; fi
    say "ray start ended with exit code $code before all nodes were there; trying again"
    for pid in $(ours); do kill -KILL "$pid" 2>/dev/null; done  # what is left of that try holds its ports
    rm -rf "$RAY_FOLDER/r"
    sleep 5 & child=$!
    wait "$child"
  done
}

start_ray() {
  local rank=1 name port where='' base=$RAY_PORT
  for name in "${nodes[@]}"; do [[ $name == "$me" ]] && break; rank=$((rank + 1)); done
  local common=(--block --disable-usage-stats "--resources=$(resources "$rank")" --min-worker-port=10002 --max-worker-port=11000)
  for name in node-manager object-manager runtime-env-agent dashboard-agent-listen dashboard-agent-grpc metrics-export; do
    base=$((base + 10))  # all named, below the ports that the kernel gives out; several nodes of one machine start apart
    if dry; then port=$base; else port=$(free_port "$((base + rank % 8))") || refuse "ports $base to $((base + 9)) are all taken on $me: set RAY_PORT"; fi
    common+=("--$name-port=$port")
  done
  if dry; then
    if [[ $me == "$head" ]]; then printf '+'; printf ' %q' ray start --head "--node-ip-address=<$me>" "--port=$RAY_PORT" --include-dashboard=false "${common[@]}"; echo
    else printf '+'; printf ' %q' ray start "--address=<$head>:$RAY_PORT" "--node-ip-address=<$me>" "${common[@]}"; echo; fi
    return
  fi
  command -v ray >/dev/null || refuse "there is no ray command on $me: wrong CONTAINER, or NODE_SETUP does not activate the environment"
  private "$RAY_FOLDER" || { say "error: $RAY_FOLDER is not ours alone on $me" >&2; exit 1; }
  MADE_RAY_FOLDER=1
  own_temporary
  # Many processes that start at once keep Ray's head busy: these time-outs are those of NeMo-RL's own ray.sub.
  export RAY_worker_register_timeout_seconds="${RAY_worker_register_timeout_seconds:-120}"
  export RAY_gcs_rpc_server_connect_timeout_s="${RAY_gcs_rpc_server_connect_timeout_s:-120}"
  export RAY_gcs_rpc_server_reconnect_timeout_s="${RAY_gcs_rpc_server_reconnect_timeout_s:-120}"
  export RAY_gcs_server_request_timeout_seconds="${RAY_gcs_server_request_timeout_seconds:-120}"
  export RAY_grpc_keepalive_time_ms="${RAY_grpc_keepalive_time_ms:-60000}"
  export RAY_grpc_keepalive_timeout_ms="${RAY_grpc_keepalive_timeout_ms:-60000}"
  if [[ $me == "$head" ]]; then
    port=$(free_port "$RAY_PORT") || refuse "ports $RAY_PORT to $((RAY_PORT + 9)) are all taken on $me: set RAY_PORT"
    where=$(address) || exit 1
    where=$where:$port
    keep_starting --head "--node-ip-address=${where%:*}" "--port=$port" --include-dashboard=false \
      "--temp-dir=$RAY_FOLDER/r" "${common[@]}" &  # Ray opens its own folder to all users of the machine
    children+=($!)
    put ray-address "$where" || exit 1
  else
    say "waiting for Ray's first node, $head"
    until [[ -r $dir/ray-address ]] && where=$(<"$dir/ray-address") && timeout 5 bash -c "exec 3<>/dev/tcp/${where%:*}/${where#*:}" 2>/dev/null; do
      # Only the first node counts RAY_SECONDS: it names who is missing, and ends the job after its own clean-up.
      if [[ -e $dir/ended ]]; then say "$me did not reach Ray on $head (${where:-it gave no address})"; exit 0; fi
      if [[ -e $dir/end ]]; then exit 1; fi
      nap 1
    done
    local own
    own=$(address) || exit 1
    keep_starting "--address=$where" "--node-ip-address=$own" "${common[@]}" &
    children+=($!)
  fi
  export RAY_ADDRESS=$where
  RAY_PID=${children[-1]}
}

stand() {  # where the user stood at submission: a relative path in a config or a word means that folder
  cd "$WORKING_FOLDER" 2>/dev/null || say "warning: $me does not see $WORKING_FOLDER, so relative paths mean $NEMO_ADA_HOME"
}

drive() {  # the first node: all nodes in Ray, then the driver
  local code=0 words
  read -ra words <<<"$LAUNCH"
  words+=("$CONFIG" "run_dir=$RUN_DIR" resume=auto "$@")
  if ((RAY_START)); then
    local wait_for=("$PYTHON" "$NEMO_ADA_HOME/slurm/wait_for_nodes.py" "$RAY_SECONDS" "${nodes[@]}")
    if dry; then printf '+'; printf ' %q' "${wait_for[@]}"; echo
    else "${wait_for[@]}" || { say "error: Ray is not complete, see above" >&2; return 1; }; put complete "${nodes[*]}"; fi
  fi
  if dry; then printf '+'; printf ' %q' "${words[@]}"; echo; return; fi
  command -v "${words[0]}" >/dev/null || refuse "there is no command ${words[0]} on $me: wrong CONTAINER, or NODE_SETUP does not activate the environment"
  stand
  export PYTHONSAFEPATH=1  # and nothing is imported from there by its name
  if ((${CHECK_FIRST:-0})); then  # a job by a direct sbatch was not checked before
    # CONTAINER= because the image's file cannot be seen from inside the container; RUN_ROOT= because RUN_DIR is told.
    CONTAINER='' RUN_ROOT='' nemo-ada check --no-verifier "--nodes=${#nodes[@]}" "$CONFIG" "run_dir=$RUN_DIR" "$@" || code=$?
    if ((code != 0 && code != 3)); then refuse "nemo-ada check refuses the config or failed itself (exit code $code), see above (PREFLIGHT=0 in site.env, or --force at submission, starts it all the same)"; fi
    code=0
  fi
  if command -v flock >/dev/null && ! flock --wait "${END_SECONDS:-60}" "$RUN_DIR/lock" true; then
    say "warning: $RUN_DIR/lock is still held by $(head -c 200 "$RUN_DIR/lock" || true)"
  fi
  say "driver: ${words[*]}"
  env "$mark" "${words[@]}" &
  children+=($!)
  attend "${children[-1]}" || code=$?
  say "driver ended with exit code $code"
  if [[ ! -e $dir/end ]]; then put driver.exit "$code"; fi
}

on_term() {  # SLURM preempts or cancels the job; only this process gets the signal where SLURM tracks by cgroup
  if [[ -e $dir/end || -n $TERMINATED ]]; then exit 143; fi
  TERMINATED=$SECONDS
  say "TERM: asking the run to save within $PREEMPT_SECONDS s"
  : >"$dir/term"
  if [[ ! -e $RUN_DIR/STOP ]]; then echo "slurm: TERM on $me" >"$RUN_DIR/STOP" && touch -r "$RUN_DIR/STOP" "$RUN_DIR/STOP.ours"; fi
}

foreign() {  # foreign FILE: the site's shell code, such as modules, conda or a last line `[[ -d x ]] && ...`; it is not ours to end
  local me dir head nodes children mark rights files words pid port where code
  set +eu +o pipefail
  # shellcheck source=/dev/null
  source "$1"
  local failed=$?
  set -uo pipefail
  if ((failed)); then echo "warning: the last command of $1 failed with exit code $failed"; fi
}

leave() {
  trap - EXIT
  if [[ $me == "$head" ]]; then : >"$dir/ended"; fi
  end_ours
  if [[ -e $dir/judged-$me ]]; then health after || true; fi
  if [[ -n $MADE_RAY_FOLDER ]]; then rm -rf "$RAY_FOLDER" ${MADE_TMPDIR:+"$MADE_TMPDIR"}; fi
}

if ! dry; then
  unset "${!SLURM_@}"  # what runs below is no part of SLURM: libraries that look for it must not find it
  mark=NEMO_ADA_TASK=$dir@$me
  trap leave EXIT
  trap 'exit 143' INT
  trap on_term TERM
  if [[ -z ${TOOL:-} ]]; then
    check_shared
    if : >>"$dir/node-$me.log"; then exec >>"$dir/node-$me.log" 2>&1; fi  # else into the log of the array
  fi
fi
if [[ -n $NODE_SETUP ]]; then
  rights=$(umask)
  if dry; then echo "+ source $NODE_SETUP"; else foreign "$NODE_SETUP"; fi
  umask "$rights"  # the run stays its owner's
fi
if ! dry; then  # what Ray and NeMo-RL's own launcher want
  files=$(ulimit -Hn)
  if [[ $files == unlimited ]] || ((files >= 65535)); then ulimit -Sn 65535
  else ulimit -Sn "$files"; say "warning: only $files open files are allowed, Ray wants 65535: ask the site to raise it"; fi
  unset UV_CACHE_DIR  # a cache of the submitting machine must not hide the image's
  export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
fi
cd "$NEMO_ADA_HOME" || refuse "there is no $NEMO_ADA_HOME on $me: the project must be on a file system that all nodes share"
if [[ -r $NEMO_ADA_HOME/nemo_ada/__init__.py ]]; then  # the checkout's code, on all nodes, whatever the image holds
  code=$NEMO_ADA_HOME/slurm/package  # it has a link to the package alone: more may lie in somebody's working folder
  [[ -r $code/nemo_ada/__init__.py ]] || code=$NEMO_ADA_HOME
  if dry; then echo "+ export PYTHONPATH=$code:..."; else
    export PYTHONPATH=$code${PYTHONPATH:+:$PYTHONPATH}
    say "nemo_ada of $NEMO_ADA_HOME"
  fi
fi
if [[ -n ${TOOL:-} ]]; then  # prepare.sh and export.sh
  read -ra words <<<"$TOOL"
  words+=("$@")
  trap - EXIT
  if dry; then printf '+'; printf ' %q' "${words[@]}"; echo; exit; fi
  stand
  exec "${words[@]}"
fi
check_health
if ((RAY_START)); then start_ray; fi
if [[ $me == "$head" ]]; then
  drive "$@"
elif ! dry; then
  attend "$RAY_PID" || { nap 10; [[ -e $dir/ended || -e $dir/end ]] || { say "error: Ray ended on $me while the run went on" >&2; exit 1; }; }
fi

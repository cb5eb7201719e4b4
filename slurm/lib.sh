# shellcheck shell=bash
# The batch side of a training run: sourced by train.sh and train_7b_ada.sh, which may set CONFIG, and call main.
# Outside SLURM it submits the script with the settings of site.env; inside it runs one attempt of a chain of jobs:
#
#   start one srun over all nodes (node.sh: checks, Ray, driver) -> wait, watch the heartbeat, pass USR1 on as a stop file
#   -> read status.json: done ends the chain, stopped and interrupted continue it, failed ends it
#
# chain.py decides what the chain does next; this file starts, watches and ends processes.
# DRY_RUN=1 prints every command instead. README.md has the reasons.
set -euo pipefail
trap : USR1  # SLURM may send it at once, where --time is shorter than the signal's lead; bash would die of it
LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "[$(date '+%F %T')] $*"; }
die() { echo "error: $*" >&2; exit 2; }
dry() { [[ ${DRY_RUN:-0} == 1 ]]; }

run() {  # run COMMAND...: do it, or print it
  if dry; then
    if [[ $1 == again ]]; then shift 2; fi
    printf '+'; printf ' %q' "$@"; echo
  else "$@"; fi
}

write() {  # write FILE TEXT: atomic, so that nobody reads half of it
  if dry; then printf '+ write %q: %s\n' "$1" "$2"; else echo "$2" >"$1.tmp.$$" && mv "$1.tmp.$$" "$1"; fi
}

only_given() {  # only_given NAMES: nothing else that we or site.env exported goes to the next job, which reads site.env anew
  local name
  for name in $(compgen -e); do
    [[ -n ${GIVEN[$name]+given} || " $* " == *" $name "* ]] || export -n "${name?}"
  done
}

forget_slurm() {  # this job's variables must not shape the next job
  local name
  for name in "${!SLURM_@}"; do [[ $name == SLURM_CONF ]] || unset "$name"; done
}

decide() {  # decide DECISION [WORDS...]: sets ANSWER to what chain.py answers; what it says goes to the log
  { ANSWER=$(
    export SCRIPT HOME_DIR CHECKOUT_HERE CONFIG RUN_DIR ATTEMPT_DIR ATTEMPT CHAIN STARTED RESUMED JOB LEAD CALLED_OFF STALL USERS_STOP
    file=chain.py
    if [[ $1 =~ ^(arguments|submission|may-submit|submitted)$ ]]; then file=submission.py; fi
    LOG_TO=3 NODE_NAMES="${NODES[*]-}" "${HOST_PYTHON:-python3}" "$LIB/$file" "$@"
  ); } 3>&1
}

nap() { sleep "$1" & wait $! || true; }  # a trap runs at once, not after the sleep

again() {  # again TRIES COMMAND...: any error of SLURM may pass; 0 tries are as many as the job has time for
  local tries=$1 wait=${AGAIN_SECONDS:-2}
  shift
  until "$@"; do
    tries=$((tries - 1))
    if ((tries == 0)); then return 1; fi
    say "SLURM did not take this; trying again in $wait s: $*" >&2
    nap "$wait"
    wait=$((wait < 30 ? 2 * wait : 60))
  done
}

# --- settings ---------------------------------------------------------------------------------------------------------

read_site() {  # read_site FILE: its settings, exported; a variable that the environment brought wins
  local name changed=()
  declare -gA GIVEN=()
  while IFS= read -r name; do GIVEN[$name]=${!name-}; done < <(compgen -e)
  set -a
  trap 'die "bash cannot read $1: a line of it failed. Write NAME=value, with no blanks around =, and commands that succeed"' ERR
  # shellcheck source=/dev/null
  source "$1"
  trap - ERR
  set +a
  for name in "${!GIVEN[@]}"; do
    case $name in
      *PATH | TMPDIR | PWD | OLDPWD | SHLVL | _) ;;  # a site adds to a search path, and the rest is the shell's and SLURM's
      NEMO_RL_HOME) ;;
      *) if [[ ${!name-} != "${GIVEN[$name]}" ]]; then changed+=("$name"); export "$name=${GIVEN[$name]}"; fi ;;
    esac
  done
  SITE_NAMES=''; for name in $(compgen -e); do [[ -n ${GIVEN[$name]+given} || $name == *PATH || $name == SBATCH_* ]] || SITE_NAMES+=${SITE_NAMES:+,}$name; done
  # With a container site.env's NEMO_RL_HOME is a path in the image; the environment's is this machine's, for the check.
  CHECKOUT_HERE=${GIVEN[NEMO_RL_HOME]:-${NEMO_RL_HOME:-}}
  if [[ -z ${CONTAINER:-} && $CHECKOUT_HERE != "${NEMO_RL_HOME:-}" ]]; then
    changed+=(NEMO_RL_HOME)
    export NEMO_RL_HOME=$CHECKOUT_HERE
  fi
  if ((${#changed[@]})); then say "from the environment, not from $1: $(printf '%s\n' "${changed[@]}" | sort | tr '\n' ' ')"; fi
}

load_settings() {
  HOME_DIR=$(cd "$1" && pwd)
  local site=${NEMO_ADA_SITE:-$HOME_DIR/slurm/site.env}
  [[ -r $site ]] || die "$site is missing: copy slurm/site.env.example to slurm/site.env and fill it in"
  if LC_ALL=C grep -q $'\r\|^\xef\xbb\xbf' "$site"; then
    die "$site has line ends or a mark of Windows, which bash reads as parts of the text: remove them (sed -i 's/\r\$//; 1s/^\xef\xbb\xbf//' $site)"
  fi
  read_site "$site"
  [[ -v CONTAINER ]] || die "CONTAINER is not set in $site: a .sqsh file or image for pyxis, or CONTAINER= for bare nodes"
  set -a
  : "${RUN_ROOT:=$HOME_DIR/runs}" "${MOUNTS:=}" "${NODE_SETUP:=}" "${LAUNCH:=nemo-ada train}" "${PYTHON:=python3}"
  : "${REQUEUE:=resubmit}" "${MAX_WITHOUT_STEP:=4}" "${RAY_START:=1}" "${RAY_PORT:=9900}" "${START_SECONDS:=7200}"
  : "${STALL_SECONDS:=1200}" "${POLL_SECONDS:=5}" "${DUMP_SECONDS:=60}" "${END_SECONDS:=60}" "${RAY_SECONDS:=600}"
  : "${SHARED_SECONDS:=60}" "${RETRY_SECONDS:=600}" "${RAY_AUTH:=token}" "${PREFLIGHT:=1}"
  : "${PREEMPT_SECONDS:=25}" "${HEALTH:=1}" "${HEALTH_SECONDS:=300}" "${MIN_TMP_GIB:=20}" "${OMP_NUM_THREADS:=16}"
  : "${HOST_PYTHON:=python3}" "${GPUS_IN_SLURM:=1}" "${LIMIT_SECONDS:=60}"
  set +a
  "$HOST_PYTHON" -c "" 2>/dev/null || die "$HOST_PYTHON does not start on this machine: set HOST_PYTHON in $site to a Python 3.6 or newer (slurm/chain.py needs no packages)"
  if [[ -z ${RUNTIME:-} ]]; then if [[ -n $CONTAINER ]]; then RUNTIME=pyxis; else RUNTIME=none; fi; fi
  [[ $RUNTIME =~ ^(pyxis|apptainer|none)$ ]] || die "RUNTIME=$RUNTIME: choose pyxis, apptainer or none (PBS and other schedulers are not supported)"
  if [[ $RUNTIME == none && -n $CONTAINER ]]; then die "RUNTIME=none starts no container, but CONTAINER=$CONTAINER: empty it, or choose pyxis or apptainer"; fi
  if [[ $RUNTIME != none && -z $CONTAINER ]]; then die "RUNTIME=$RUNTIME needs an image: set CONTAINER (a .sqsh for pyxis, a .sif for apptainer)"; fi
  [[ $RAY_AUTH =~ ^(token|disabled)$ ]] || die "RAY_AUTH=$RAY_AUTH: choose token, or disabled for a Ray that cannot"
  [[ $REQUEUE =~ ^(requeue|resubmit|none)$ ]] || die "REQUEUE=$REQUEUE: choose resubmit, requeue (where a user may submit one job only) or none"
  if [[ -n ${MAX_ATTEMPTS:-} ]]; then say "MAX_ATTEMPTS has no effect: MAX_WITHOUT_STEP=$MAX_WITHOUT_STEP attempts in a row without a new step end a chain"; fi
  local name
  for name in MAX_WITHOUT_STEP RAY_START RAY_PORT START_SECONDS STALL_SECONDS POLL_SECONDS DUMP_SECONDS END_SECONDS \
    RAY_SECONDS SHARED_SECONDS RETRY_SECONDS PREFLIGHT HEALTH HEALTH_SECONDS MIN_TMP_GIB PREEMPT_SECONDS GPUS_IN_SLURM LIMIT_SECONDS; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name=${!name} must be a whole number"
  done
}

# --- outside SLURM: submit --------------------------------------------------------------------------------------------

submit() {
  unset NEMO_ADA_CHAIN NEMO_ADA_AFTER NEMO_ADA_FULL  # of the job in which this shell may be
  local id folder=$RUN_DIR log=$RUN_DIR/attempts/slurm-%x-%j.log
  decide submission "${OPTIONS[@]}" "${OVERRIDES[@]}" || exit 2
  eval "$ANSWER"
  if [[ -n $TASK ]]; then folder=$(dirname "$RUN_DIR") log=$RUN_DIR-%A_%a.log; fi  # its tasks make their folders
  if [[ $SCRIPT != train* ]]; then folder=$PWD log=; elif dry; then :; elif [[ -n $TASK ]]; then mkdir -p "$folder"; else decide may-submit || exit 2; fi
  OPTIONS=(${log:+"--output=$log"} "${OPTIONS[@]}")
  if [[ $REQUEUE == requeue ]]; then OPTIONS+=(--requeue); fi
  NEMO_ADA_OPTIONS=$(printf '%s\n' "${OPTIONS[@]}")
  export CONFIG RUN_DIR NEMO_ADA_OPTIONS NEMO_ADA_HOME=$HOME_DIR NEMO_ADA_CHECKED=1
  id=$(
    only_given CONFIG RUN_DIR NEMO_ADA_OPTIONS NEMO_ADA_HOME NEMO_ADA_CHECKED "${!SBATCH_@}"
    run sbatch --parsable --export=ALL --chdir="$folder" "${OPTIONS[@]}" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "${OVERRIDES[@]}"
  ) || exit 2
  if dry; then echo "$id"; return; fi
  id=${id%%;*}
  if [[ $SCRIPT == train* && -z $TASK ]]; then
    decide submitted "$id"
    echo "log $RUN_DIR/attempts/; nemo-ada status $RUN_DIR"
    if [[ $REQUEUE == resubmit ]] && ! sbatch --test-only --dependency="afterany:$id" "${OPTIONS[@]}" "$HOME_DIR/slurm/$SCRIPT" >/dev/null; then
      echo "SLURM does not take a second job beside this one (see above), so the chain goes on by a requeue when a job ends"
    fi
  fi
  echo "Submitted batch job $id"
}

# --- inside SLURM: one attempt ----------------------------------------------------------------------------------------

ray_token() {  # who has not read this file gets no answer from the job's Ray; it is nobody's but ours, and new each time
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$ATTEMPT_DIR/ray-token
  if dry; then echo "+ write a random token to $RAY_AUTH_TOKEN_PATH (mode 600), RAY_AUTH_MODE=token"; return; fi
  (umask 077 && random 32 >"$RAY_AUTH_TOKEN_PATH")
}

random() { od -An "-N$1" -tx1 /dev/urandom | tr -d ' \n'; }  # random BYTES: that many, in hexadecimal digits

users_stop() {  # a stop file that is not ours, or that was touched after we wrote it
  [[ -e $RUN_DIR/STOP ]] || return 1
  [[ $(head -c 6 "$RUN_DIR/STOP") != slurm: ]] || [[ -e $RUN_DIR/STOP.ours && $RUN_DIR/STOP -nt $RUN_DIR/STOP.ours ]]
}

prepare() {
  local folder
  NODE_LINES=$(if dry; then printf 'node%d\n' $(seq "$SLURM_JOB_NUM_NODES"); else again 0 scontrol show hostnames "$SLURM_JOB_NODELIST"; fi)
  mapfile -t NODES <<<"$NODE_LINES"
  ((RAY_START || ${#NODES[@]} == 1)) || die "RAY_START=0 with ${#NODES[@]} nodes: a driver of several nodes needs Ray on each; set RAY_START=1"
  case $RUNTIME in  # in a job: the login node may lack what the nodes have
    pyxis) dry || srun --help 2>&1 | grep container-image >/dev/null || die "this SLURM has no pyxis (srun --container-image): set RUNTIME=apptainer with a .sif file, or CONTAINER= and RUNTIME=none" ;;
    apptainer) dry || command -v "${APPTAINER:-apptainer}" >/dev/null || die "there is no ${APPTAINER:-apptainer} on $(hostname): load its module in site.env, set APPTAINER to its path, or CONTAINER= and RUNTIME=none" ;;
  esac
  STARTED=$(date +%s)
  CHAIN=${NEMO_ADA_CHAIN:-${JOB:-$SLURM_JOB_ID}}
  if ! dry; then
    if [[ -n ${NEMO_ADA_CHAIN:-} || ${SLURM_RESTART_COUNT:-0} != 0 ]]; then decide begin || exit $(($? - 1)); fi
    if ! decide space; then
      export NEMO_ADA_FULL=$((${NEMO_ADA_FULL:-0} + 1))
      if ((NEMO_ADA_FULL < MAX_WITHOUT_STEP)); then queue_next 0 "$@"; else decide over "no space"; fi
      exit 1
    fi
    unset NEMO_ADA_FULL
  fi
  run mkdir -p "$RUN_DIR/attempts"
  if dry; then write "$RUN_DIR/job" "${JOB:-$SLURM_JOB_ID}"; else decide claim || exit 2; fi
  if ! dry && [[ -z ${NEMO_ADA_CHAIN:-} && ${SLURM_RESTART_COUNT:-0} == 0 ]]; then decide begin || exit $(($? - 1)); fi
  if ! dry; then trap off TERM INT; fi
  if users_stop; then
    say "$RUN_DIR/STOP ends this chain before its next attempt; the file is removed, so that a new submission goes on"
    run rm -f "$RUN_DIR/STOP"
    if ! dry; then decide over asked; cancel_next; fi
    exit 0
  fi
  ATTEMPT_DIR=$RUN_DIR/attempts/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
  run rm -f "$RUN_DIR/STOP"
  run rm -rf "$ATTEMPT_DIR"
  run mkdir -p "$ATTEMPT_DIR"
  for folder in "$RUN_DIR"/attempts/*/; do  # what is left of an older attempt, on a node that SLURM lost, ends itself
    if ! dry && [[ $folder != "$ATTEMPT_DIR/" && -e $folder/canary && ! -s $folder/end ]]; then
      echo "attempt $(basename "$ATTEMPT_DIR") goes on" >"$folder/end" || true
    fi
  done
  if [[ $RAY_AUTH == token ]]; then ray_token; fi
  write "$ATTEMPT_DIR/canary" "$SLURM_JOB_ID"
  if dry; then ATTEMPT=1; else decide record; ATTEMPT=$ANSWER; fi
  RAY_FOLDER=/tmp/nemo-ada-ray-$(random 8)  # on each node; Ray takes the head's name for all of them
  export RAY_FOLDER NEMO_ADA_JOB_END RUN_DIR ATTEMPT_DIR CONFIG STARTED GPUS_PER_NODE NEMO_ADA_HOME=$HOME_DIR NODE_NAMES="${NODES[*]}"
  export PYTHONNOUSERSITE=1  # a home folder's packages must not hide the image's
  export CHECK_FIRST=0
  if ((PREFLIGHT && ATTEMPT == 1)) && [[ -z ${NEMO_ADA_CHECKED:-} && $LAUNCH == nemo-ada\ * ]]; then CHECK_FIRST=1; fi
  ANSWER='<end of the job, epoch seconds>'
  if ! dry; then
    queue_next 0 "$@" &
    QUEUE_PID=$!
    decide job-end
  fi
  NEMO_ADA_JOB_END=$ANSWER
  say "attempt $ATTEMPT of this chain, job $SLURM_JOB_ID on ${#NODES[@]} node(s): ${NODES[*]}"
  if ! dry && [[ -z ${NEMO_ADA_OPTIONS:-} && -n $NEMO_ADA_JOB_END && -n $LEAD ]] && ((NEMO_ADA_JOB_END - STARTED <= LEAD)); then
    say "warning: the job is not longer than $LEAD s, at which the signal comes by the header of $SCRIPT: add --signal=B:USR1@SECONDS to sbatch, or start slurm/train.sh, which plans it"
  fi
  say "run directory $RUN_DIR; logs $ATTEMPT_DIR/node-*.log; the job ends at ${NEMO_ADA_JOB_END:-no set time}"
}

step_command() {  # sets STEP: the srun over all nodes, in the container where there is one
  local cpus  # as many as the smallest node has: 72(x2),36
  cpus=$(tr , '\n' <<<"${SLURM_JOB_CPUS_PER_NODE:-${SLURM_CPUS_ON_NODE:-1}}" | sed 's/(.*//' | sort -n | head -n 1)
  local mounts=$HOME_DIR,$RUN_DIR${MOUNTS:+,$MOUNTS}
  STEP=(srun "--nodes=${#NODES[@]}" "--ntasks=${#NODES[@]}" --ntasks-per-node=1
    "--cpus-per-task=$cpus" --kill-on-bad-exit=1 --propagate=NONE --export=ALL)
  if ((INSIDE)); then STEP+=(--overlap); fi  # the shell of `srun --pty bash` is a step that holds the job's CPUs
  case $RUNTIME in
    pyxis) STEP+=("--container-image=$CONTAINER" "--container-mounts=$mounts" "--container-workdir=$HOME_DIR" --no-container-mount-home)
      if [[ -n $SITE_NAMES ]]; then STEP+=("--container-env=$SITE_NAMES"); fi ;;  # else the image's own values win
    apptainer) STEP+=("${APPTAINER:-apptainer}" exec --nv --bind "$mounts" --pwd "$HOME_DIR" "$CONTAINER") ;;
  esac
  STEP+=(bash "$HOME_DIR/slurm/node.sh" "$@")
}

one_command() {  # one_command nemo-ada WORDS...: a job of one node that trains nothing
  NODES=("${SLURM_JOB_NODELIST:-node1}")
  run mkdir -p "$RUN_DIR"
  export TOOL="$*" RUN_DIR NEMO_ADA_HOME=$HOME_DIR NODE_NAMES=${NODES[0]} ATTEMPT_DIR=$RUN_DIR PYTHONNOUSERSITE=1
  step_command "${OVERRIDES[@]}"
  run "${STEP[@]}"
  if dry; then SLURMD_NODENAME=${NODES[0]} bash "$HOME_DIR/slurm/node.sh" "${OVERRIDES[@]}"; fi
}

ask_to_stop() {  # ask_to_stop TEXT: by a stop file that is known to be ours
  if [[ -e $RUN_DIR/STOP ]]; then return 0; fi  # without the 0 a trap would return what it interrupted
  write "$RUN_DIR/STOP" "$1"
  run touch -r "$RUN_DIR/STOP" "$RUN_DIR/STOP.ours"
}

on_usr1() {
  if [[ ! -e $RUN_DIR/STOP ]]; then say "USR1: the job's end is near, asking the run to save and stop"; fi
  local left=''
  if [[ ${NEMO_ADA_JOB_END:-} == *[0-9] ]]; then left=": $((NEMO_ADA_JOB_END - $(date +%s))) s are left"; fi
  ask_to_stop "slurm: job $SLURM_JOB_ID is about to end$left"
}

on_term() {  # scancel, preemption, a lost node, or the wall: KILL comes later
  trap '' TERM INT
  local waited=0 ANSWER
  decide called-off
  CALLED_OFF=$ANSWER
  say "TERM: $CALLED_OFF; the run has $PREEMPT_SECONDS s to save"
  : >"$ATTEMPT_DIR/term"
  decide why
  ask_to_stop "slurm: TERM of job $SLURM_JOB_ID ($CALLED_OFF)"
  if [[ $CALLED_OFF == asked ]]; then end_chain asked & else continue_chain & fi
  while kill -0 "$STEP_PID" 2>/dev/null && ((waited < PREEMPT_SECONDS)); do nap 1; waited=$((waited + 1)); done
  end_step
}

off() {  # TERM before or after the step: scancel ends the chain, and whatever else it is does not
  trap '' TERM INT
  decide called-off
  if [[ $ANSWER == asked ]]; then end_chain asked; fi
  exit 143
}

end_step() {  # our own srun and what it started, nothing else
  local waited=0
  [[ -s $ATTEMPT_DIR/end ]] || : >"$ATTEMPT_DIR/end" || true
  while kill -0 "$STEP_PID" 2>/dev/null && ((waited < END_SECONDS)); do nap 1; waited=$((waited + 1)); done
  if kill -0 "$STEP_PID" 2>/dev/null; then
    say "the step did not end within $END_SECONDS s: killing it"
    kill -TERM "$STEP_PID" 2>/dev/null || true
    nap 5
    kill -KILL "$STEP_PID" 2>/dev/null || true
  fi
}

watch() {  # until the step ends; sets STALL where the watchdog ended it
  local now last asked waited
  STALL='' RESUMED=0 last=$STARTED asked=$STARTED
  while kill -0 "$STEP_PID" 2>/dev/null; do
    nap "$POLL_SECONDS"
    now=$(date +%s)
    if ((now - last > POLL_SECONDS + 60)) && [[ $last != "$STARTED" ]]; then RESUMED=$now; say "this job was suspended for $((now - last)) s"; fi
    last=$now
    if ((now - asked >= LIMIT_SECONDS)); then asked=$now; new_limit; fi
    decide stalled || true
    if [[ -n $ANSWER ]]; then
      STALL=$ANSWER
      say "watchdog: $STALL; writing stacks to $ATTEMPT_DIR/stacks-*.txt"
      : >"$ATTEMPT_DIR/dump"
      waited=0
      while ((waited < DUMP_SECONDS)) && (($(find "$ATTEMPT_DIR" -name 'stacks-*.txt' | wc -l) < ${#NODES[@]})); do
        nap 1
        waited=$((waited + 1))
      done
      end_step
    fi
  done
  wait "$STEP_PID" 2>/dev/null || true
  if [[ -s $ATTEMPT_DIR/end ]]; then say "this attempt is over: $(<"$ATTEMPT_DIR/end")"; exit 1; fi
  : >"$ATTEMPT_DIR/end" || true  # a node that SLURM cannot reach may train on
}

new_limit() {  # the job's limit may be extended while it runs, also by a suspension
  decide job-end || return 0
  if [[ -n $ANSWER && $ANSWER != "$NEMO_ADA_JOB_END" ]]; then
    say "the job now ends at $ANSWER"
    NEMO_ADA_JOB_END=$ANSWER
    write "$ATTEMPT_DIR/job-end" "$ANSWER" || true
  fi
}

queue_next() {  # queue_next TRIES WORDS...: the chain's next job waits for the end of this one, from its beginning
  local tries=$1 wait=${AGAIN_SECONDS:-2} code id me=${JOB:-$SLURM_JOB_ID}
  shift
  if ! dry; then trap '' TERM INT USR1; fi
  case $REQUEUE in
    none) return 0 ;;
    requeue) run again "$tries" scontrol update "JobId=$me" Requeue=1; return ;;
  esac
  while true; do
    code=1
    if ! dry; then code=0; decide waiting || code=$?; fi  # a submission that seemed to fail may have got through
    if ((code == 0)); then return 0; fi
    if ((code == 1)); then
      decide options
      mapfile -t FOLLOW <<<"$ANSWER"
      if id=$(send "$@"); then
        if dry; then echo "$id"; else decide queued "$id"; fi
        return 0
      fi
      scontrol update "JobId=$me" Requeue=1 || true  # until there is a next job, SLURM's own requeue is the way on
    fi
    tries=$((tries - 1))
    if ((tries == 0)); then return 1; fi
    say "SLURM did not take the chain's next job; trying again in $wait s" >&2
    nap "$wait"
    wait=$((wait < 30 ? 2 * wait : 60))
  done
}

send() {  # send WORDS...: sbatch of the next job, with what the first one got; prints its id
  (
    export NEMO_ADA_CHAIN=$CHAIN NEMO_ADA_CHECKED=1 NEMO_ADA_AFTER=${JOB:-$SLURM_JOB_ID}
    only_given CONFIG RUN_DIR NEMO_ADA_HOME NEMO_ADA_CHAIN NEMO_ADA_AFTER NEMO_ADA_CHECKED NEMO_ADA_FULL "${!SBATCH_@}"
    unset NEMO_ADA_OPTIONS SBATCH_WAIT SBATCH_HOLD
    if ! dry; then forget_slurm; fi
    RUN_DIR=${RUN_BASE:-$RUN_DIR} run sbatch --parsable --export=ALL "--chdir=$PWD" "${FOLLOW[@]}" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "$@"
  )
}

requeue() {  # the way on without a next job. SLURM then ends this script
  say "requeueing job ${JOB:-$SLURM_JOB_ID}"
  run scontrol update "JobId=${JOB:-$SLURM_JOB_ID}" Requeue=1 || true
  if ! dry; then trap 'exit 143' TERM INT; fi  # SLURM's answer to this: it is no scancel
  run scontrol requeue "${JOB:-$SLURM_JOB_ID}" || return 1
  if ! dry; then nap 60; fi
}

continue_chain() {  # the next job waits already, or SLURM takes no second one: then this job is requeued
  local code=0
  case $REQUEUE in
    none)
      if ((INSIDE)); then say "this allocation ends: the same command in a new one goes on from the last save, and HERE=submit in front makes a chain of jobs of it"
      else say "REQUEUE=none: submit $SCRIPT again to continue"; fi ;;
    requeue) again 0 requeue ;;
    resubmit)
      if dry; then return; fi
      while kill -0 "$QUEUE_PID" 2>/dev/null; do
        nap 5
        if kill -0 "$QUEUE_PID" 2>/dev/null; then requeue || true; fi
      done
      decide waiting || code=$?
      if ((code == 1)); then say "the job that waited was cancelled, so the chain ends"; decide over asked
      else say "job ${ANSWER:-that waits} goes on when this one has ended"; fi ;;
  esac
}

end_chain() {  # end_chain REASON: a job of the chain that starts all the same sees that it is over
  decide over "$1"
  cancel_next
}

cancel_next() {
  if [[ -n $QUEUE_PID ]]; then kill -KILL "$QUEUE_PID" 2>/dev/null || true; fi
  if [[ $REQUEUE == resubmit ]] && decide waiting; then again 5 scancel "$ANSWER" || true; fi
}

attempt() {
  local name names code=0
  CALLED_OFF=''
  prepare "$@"
  step_command "$@" "${SEED[@]}"
  if dry; then
    queue_next 1 "$@"
    run "${STEP[@]}"
    for name in "${NODES[@]:0:2}"; do
      echo "# on $name:"
      SLURMD_NODENAME=$name bash "$HOME_DIR/slurm/node.sh" "$@"
    done
    echo "# USR1 before the job's end:"
    on_usr1
    echo "# status.json says stopped (done and failed end the chain, and the next job is cancelled):"
    continue_chain
    return
  fi
  trap on_usr1 USR1
  trap on_term TERM INT
  "${STEP[@]}" 2> >(tee -a "$ATTEMPT_DIR/srun.log" >&2) &
  STEP_PID=$!
  watch
  trap '' USR1
  USERS_STOP=$(if users_stop; then echo 1; fi)
  decide ended || code=$?
  trap off TERM INT  # why the attempt ended is written down
  if [[ -n $USERS_STOP ]]; then rm -f "$RUN_DIR/STOP"; fi
  case $ANSWER in
    called-off) wait || true; exit 143 ;;  # on_term has ended or continued the chain
    again) continue_chain ;;
    without)
      while kill -0 "$QUEUE_PID" 2>/dev/null && [[ $REQUEUE == resubmit ]]; do nap 1; done
      decide excluded
      names=$ANSWER
      if [[ $REQUEUE == resubmit ]] && decide waiting; then again 8 scontrol update "JobId=$ANSWER" "ExcNodeList=$names" || true; fi
      continue_chain ;;
    *)
      cancel_next
      return "$code" ;;
  esac
}

one_task() {  # a task of --array is a run of its own, with a folder, a seed and a chain; SLURM's plain id may mean all tasks
  SEED=("grpo.seed=$TASK") RUN_BASE=$RUN_DIR RUN_DIR=$RUN_DIR-seed$TASK
  if [[ -n ${SLURM_ARRAY_JOB_ID-} ]]; then JOB=${SLURM_ARRAY_JOB_ID}_$TASK; fi
}

inside_another_job() {  # in salloc's shell or an editor's job the script was not started by sbatch
  [[ -n ${SLURM_JOB_ID:-} && $(basename "$0") != slurm_script ]]
}

ask_where() {  # sets SUBMIT to 1 or 0: HERE=train|submit, else a question on a terminal
  local answer=${HERE:-}
  if [[ -z $answer && -t 0 ]]; then
    read -r -p "This is job $SLURM_JOB_ID. Train in it, or submit a job of its own? [train/submit] " answer
  fi
  case $answer in
    train) SUBMIT=0 INSIDE=1 REQUEUE=none ;;  # SLURM requeues no allocation of salloc
    submit) SUBMIT=1 ;;
    *) die "this shell is inside job $SLURM_JOB_ID: put HERE=train in front to train in it, or HERE=submit to submit a job of its own" ;;
  esac
}

main() {  # main SCRIPT PROJECT_ROOT [SBATCH OPTIONS and OVERRIDES...]
  # These names are ours. What the user's shell has exported under one of them is not meant for us.
  unset ANSWER ATTEMPT ATTEMPT_DIR CALLED_OFF CHAIN CHECKOUT_HERE CHECK_FIRST FIRST FOLLOW GIVEN HOME_DIR INSIDE JOB LEAD LOG_TO NODES \
    NODE_LINES NODE_NAMES NODES_ASKED OPTIONS OVERRIDES QUEUE_PID RAY_FOLDER RESUMED RUN_BASE SCRIPT SEED SITE_NAMES STALL STARTED STEP STEP_PID \
    SUBMIT TASK TOOL USERS_STOP
  QUEUE_PID=''
  SCRIPT=$1
  load_settings "$2"
  shift 2
  decide arguments "$@" || exit 2
  eval "$ANSWER"  # CONFIG, RUN_DIR, OPTIONS, OVERRIDES and others
  SUBMIT=1 INSIDE=0 SEED=()
  if inside_another_job; then ask_where; elif [[ -n ${SLURM_JOB_ID:-} ]]; then SUBMIT=0; fi
  if ((SUBMIT)); then
    if [[ -n ${SLURM_JOB_ID:-} ]]; then forget_slurm; fi
    submit
    if ! dry; then return; fi
    echo "# what the job then does:"
    export SLURM_JOB_ID=1
    SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-96} SLURM_JOB_NUM_NODES=$NODES_ASKED
    say() { echo "# $*"; }
  elif ((${#OPTIONS[@]})); then
    die "${OPTIONS[0]}: sbatch takes its options in front of the script; slurm/$SCRIPT, started without sbatch, takes them anywhere"
  fi
  if ! dry && [[ -n $TASK && -n ${SLURM_ARRAY_TASK_ID-} ]]; then one_task; fi
  case $SCRIPT in
    prepare.sh) one_command nemo-ada prepare "$CONFIG" ;;
    export.sh) one_command nemo-ada export "$RUN_DIR" ;;
    *) attempt "${OVERRIDES[@]}" ;;
  esac
}

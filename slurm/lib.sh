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
    if [[ $1 == again ]]; then shift; fi
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
    export SCRIPT HOME_DIR CHECKOUT_HERE CONFIG RUN_DIR ATTEMPT_DIR ATTEMPT CHAIN STARTED JOB LEAD LATER CALLED_OFF STALL USERS_STOP
    LOG_TO=3 NODE_NAMES="${NODES[*]-}" "${HOST_PYTHON:-python3}" "$LIB/chain.py" "$@"
  ); } 3>&1
}

nap() { sleep "$1" & wait $! || true; }  # a trap runs at once, not after the sleep

again() {  # again COMMAND...: SLURM's controller may not answer for a while; until the job ends, another try may
  local said code
  while true; do
    code=0
    said=$("$@" 2>&1) || code=$?
    if ((code == 0)) || [[ $said == *"pending execution"* ]]; then break; fi  # the second: an earlier try got through
    echo "$said" >&2
    ((code == 143)) || [[ $said =~ (ontact.slurm|timed.out|onnection.refused|onnection.reset|emporarily|Zero.Bytes) ]] || return "$code"
    say "SLURM does not answer; trying again: $*"
    nap "${AGAIN_SECONDS:-10}"
  done
  if [[ -n $said ]]; then echo "$said"; fi
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
  : "${REQUEUE:=requeue}" "${MAX_ATTEMPTS:=50}" "${RAY_START:=1}" "${RAY_PORT:=9900}" "${START_SECONDS:=7200}"
  : "${STALL_SECONDS:=1200}" "${POLL_SECONDS:=5}" "${DUMP_SECONDS:=60}" "${END_SECONDS:=60}" "${RAY_SECONDS:=600}"
  : "${SHARED_SECONDS:=60}" "${RETRY_SECONDS:=600}" "${RAY_AUTH:=token}" "${PREFLIGHT:=1}"
  : "${PREEMPT_SECONDS:=25}" "${HEALTH:=1}" "${HEALTH_SECONDS:=300}" "${MIN_TMP_GIB:=20}" "${OMP_NUM_THREADS:=16}"
  : "${HOST_PYTHON:=python3}" "${MAX_LEFT_OUT:=3}" "${GPUS_IN_SLURM:=1}"
  set +a
  "$HOST_PYTHON" -c "" 2>/dev/null || die "$HOST_PYTHON does not start on this machine: set HOST_PYTHON in $site to a Python 3.6 or newer (slurm/chain.py needs no packages)"
  if [[ -z ${RUNTIME:-} ]]; then if [[ -n $CONTAINER ]]; then RUNTIME=pyxis; else RUNTIME=none; fi; fi
  [[ $RUNTIME =~ ^(pyxis|apptainer|none)$ ]] || die "RUNTIME=$RUNTIME: choose pyxis, apptainer or none (PBS and other schedulers are not supported)"
  if [[ $RUNTIME == none && -n $CONTAINER ]]; then die "RUNTIME=none starts no container, but CONTAINER=$CONTAINER: empty it, or choose pyxis or apptainer"; fi
  if [[ $RUNTIME != none && -z $CONTAINER ]]; then die "RUNTIME=$RUNTIME needs an image: set CONTAINER (a .sqsh for pyxis, a .sif for apptainer)"; fi
  [[ $RAY_AUTH =~ ^(token|disabled)$ ]] || die "RAY_AUTH=$RAY_AUTH: choose token, or disabled for a Ray that cannot"
  [[ $REQUEUE =~ ^(requeue|resubmit|none)$ ]] || die "REQUEUE=$REQUEUE: choose requeue, resubmit (where users may not requeue) or none"
  local name
  for name in MAX_ATTEMPTS RAY_START RAY_PORT START_SECONDS STALL_SECONDS POLL_SECONDS DUMP_SECONDS END_SECONDS \
    RAY_SECONDS SHARED_SECONDS RETRY_SECONDS PREFLIGHT HEALTH HEALTH_SECONDS MIN_TMP_GIB PREEMPT_SECONDS MAX_LEFT_OUT GPUS_IN_SLURM; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name=${!name} must be a whole number"
  done
}

# --- outside SLURM: submit --------------------------------------------------------------------------------------------

submit() {
  decide submission "${OPTIONS[@]}" "${OVERRIDES[@]}" || exit 2
  eval "$ANSWER"
  NEMO_ADA_OPTIONS=$(printf '%s\n' "${OPTIONS[@]}")
  export CONFIG RUN_DIR NEMO_ADA_OPTIONS NEMO_ADA_HOME=$HOME_DIR NEMO_ADA_CHECKED=1
  (
    only_given CONFIG RUN_DIR NEMO_ADA_OPTIONS NEMO_ADA_HOME NEMO_ADA_CHECKED "${!SBATCH_@}"
    run sbatch --export=ALL --chdir="$HOME_DIR" "${OPTIONS[@]}" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "${OVERRIDES[@]}"
  )
}

# --- inside SLURM: one attempt ----------------------------------------------------------------------------------------

guard() { decide may-continue; }  # may the chain have another attempt? Before one starts and before one is asked for

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
  mapfile -t NODES < <(if dry; then printf 'node%d\n' $(seq "$SLURM_JOB_NUM_NODES"); else scontrol show hostnames "$SLURM_JOB_NODELIST"; fi)
  ((RAY_START || ${#NODES[@]} == 1)) || die "RAY_START=0 with ${#NODES[@]} nodes: a driver of several nodes needs Ray on each; set RAY_START=1"
  case $RUNTIME in  # in a job: the login node may lack what the nodes have
    pyxis) dry || srun --help 2>&1 | grep container-image >/dev/null || die "this SLURM has no pyxis (srun --container-image): set RUNTIME=apptainer with a .sif file, or CONTAINER= and RUNTIME=none" ;;
    apptainer) dry || command -v "${APPTAINER:-apptainer}" >/dev/null || die "there is no ${APPTAINER:-apptainer} on $(hostname): load its module in site.env, set APPTAINER to its path, or CONTAINER= and RUNTIME=none" ;;
  esac
  STARTED=$(date +%s)
  CHAIN=${NEMO_ADA_CHAIN:-$SLURM_JOB_ID}
  if ! dry && ! decide space; then
    later "$@"
    exit 1
  fi
  run mkdir -p "$RUN_DIR/attempts"
  if dry; then write "$RUN_DIR/job" "${JOB:-$SLURM_JOB_ID}"; else decide claim || exit 2; fi
  if users_stop; then
    say "$RUN_DIR/STOP ends this chain before its next attempt; the file is removed, so that a new submission goes on"
    run rm -f "$RUN_DIR/STOP"
    exit 0
  fi
  guard || exit 1
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
  ATTEMPT=1
  if ! dry; then
    decide record
    ATTEMPT=$ANSWER
  fi
  RAY_FOLDER=/tmp/nemo-ada-ray-$(random 8)  # on each node; Ray takes the head's name for all of them
  export RAY_FOLDER NEMO_ADA_JOB_END RUN_DIR ATTEMPT_DIR CONFIG STARTED GPUS_PER_NODE NEMO_ADA_HOME=$HOME_DIR NODE_NAMES="${NODES[*]}"
  export PYTHONNOUSERSITE=1  # a home folder's packages must not hide the image's
  CHECK_FIRST=0
  if ((PREFLIGHT && ATTEMPT == 1)) && [[ -z ${NEMO_ADA_CHECKED:-} && $LAUNCH == nemo-ada\ * ]]; then CHECK_FIRST=1; fi
  export CHECK_FIRST
  if dry; then
    NEMO_ADA_JOB_END='<end of the job, epoch seconds>'
  else
    decide job-end
    NEMO_ADA_JOB_END=$ANSWER
  fi
  say "attempt $ATTEMPT of at most $MAX_ATTEMPTS, job $SLURM_JOB_ID on ${#NODES[@]} node(s): ${NODES[*]}"
  if ! dry && [[ -z ${NEMO_ADA_OPTIONS:-} && -n $NEMO_ADA_JOB_END && -n $LEAD ]] && ((NEMO_ADA_JOB_END - STARTED <= LEAD)); then
    say "warning: the job is not longer than $LEAD s, at which the signal comes by the header of $SCRIPT: add --signal=B:USR1@SECONDS to sbatch, or start slurm/train.sh, which plans it"
  fi
  say "run directory $RUN_DIR; logs $ATTEMPT_DIR/node-*.log; the job ends at ${NEMO_ADA_JOB_END:-no set time}"
}

step_command() {  # sets STEP: the srun over all nodes, in the container where there is one
  local mounts=$HOME_DIR,$RUN_DIR${MOUNTS:+,$MOUNTS}
  STEP=(srun "--nodes=${#NODES[@]}" "--ntasks=${#NODES[@]}" --ntasks-per-node=1
    "--cpus-per-task=${SLURM_CPUS_ON_NODE:-1}" --kill-on-bad-exit=1 --export=ALL)
  if ((INSIDE)); then STEP+=(--overlap); fi  # the shell of `srun --pty bash` is a step that holds the job's CPUs
  case $RUNTIME in
    pyxis) STEP+=("--container-image=$CONTAINER" "--container-mounts=$mounts" "--container-workdir=$HOME_DIR" --no-container-mount-home) ;;
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

on_term() {  # scancel, preemption, a lost node, or the wall: SLURM takes a requeue now, and KILL comes later
  trap '' TERM INT
  local waited=0 ANSWER  # what the trap interrupted may be about to read the other ANSWER
  decide called-off
  if [[ $ASKED_SLURM == asking && $ANSWER == wall ]]; then return 0; fi  # `again` goes on until KILL
  if [[ -n $ASKED_SLURM ]]; then exit 143; fi  # our own requeue ends this script
  CALLED_OFF=$ANSWER
  say "TERM: $CALLED_OFF; the run has $PREEMPT_SECONDS s to save"
  : >"$ATTEMPT_DIR/term"
  decide why
  ask_to_stop "slurm: TERM of job $SLURM_JOB_ID ($CALLED_OFF)"
  if [[ $CALLED_OFF != asked ]]; then next_job "${WORDS[@]}" || true; fi
  while kill -0 "$STEP_PID" 2>/dev/null && ((waited < PREEMPT_SECONDS)); do nap 1; waited=$((waited + 1)); done
  end_step
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
  STALL=
  while kill -0 "$STEP_PID" 2>/dev/null; do
    nap "$POLL_SECONDS"
    decide stalled || true
    if [[ -n $ANSWER ]]; then
      STALL=$ANSWER
      say "watchdog: $STALL; writing stacks to $ATTEMPT_DIR/stacks-*.txt"
      : >"$ATTEMPT_DIR/dump"
      local waited=0
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

continue_chain() {
  if ! guard; then return 1; fi
  next_job "$@" || return 1
  if ! dry && [[ $REQUEUE == requeue ]]; then nap 60; fi  # SLURM ends this script now
}

later() {  # later WORDS...: a cause that time mends, and that no requeue waits for
  if [[ $REQUEUE == requeue ]]; then REQUEUE=resubmit; fi
  LATER=$RETRY_SECONDS
  continue_chain "$@"
}

next_job() {  # next_job WORDS...: asks SLURM for the chain's next attempt
  ASKED_SLURM=asking
  case $REQUEUE in
    none)
      if ((INSIDE)); then say "this allocation ends: the same command in a new one goes on from the last save, and HERE=submit in front makes a chain of jobs of it"
      else say "REQUEUE=none: submit $SCRIPT again to continue"; fi ;;
    requeue)
      say "requeueing job $SLURM_JOB_ID"
      if run again scontrol requeue "${JOB:-$SLURM_JOB_ID}"; then ASKED_SLURM=1; return 0; fi
      say "SLURM does not requeue this job; submitting a follow-up job"
      REQUEUE=resubmit
      next_job "$@" ;;
    resubmit)
      decide options
      mapfile -t FOLLOW <<<"$ANSWER"
      export NEMO_ADA_CHAIN=$CHAIN NEMO_ADA_CHECKED=1
      (
        trap '' TERM INT
        only_given CONFIG RUN_DIR NEMO_ADA_HOME NEMO_ADA_CHAIN NEMO_ADA_CHECKED
        if ! dry; then forget_slurm; fi
        RUN_DIR=${RUN_BASE:-$RUN_DIR} run again sbatch --export=ALL "${FOLLOW[@]}" "--chdir=$PWD" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "$@"
      ) ;;
  esac
}

attempt() {
  local name code=0
  WORDS=("$@") CALLED_OFF='' ASKED_SLURM=''
  prepare "$@"
  step_command "$@" "${SEED[@]}"
  if dry; then
    run "${STEP[@]}"
    for name in "${NODES[@]:0:2}"; do
      echo "# on $name:"
      SLURMD_NODENAME=$name bash "$HOME_DIR/slurm/node.sh" "$@"
    done
    echo "# USR1 before the job's end:"
    on_usr1
    echo "# status.json says stopped (done and failed end the chain):"
    continue_chain "$@"
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
  if [[ -n $USERS_STOP ]]; then rm -f "$RUN_DIR/STOP"; fi
  case $ANSWER in
    called-off) exit 143 ;;  # on_term has asked for the next job, unless the user ended the chain
    again) continue_chain "$@" ;;
    later) later "$@" ;;
    without)  # a running job's ExcNodeList cannot change, so it is a new job
      REQUEUE=resubmit
      continue_chain "$@" ;;
    *) return "$code" ;;
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

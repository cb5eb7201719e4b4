# shellcheck shell=bash
# The batch side of a training run: sourced by train.sh and train_7b_ada.sh, which may set CONFIG, and call main.
# Outside SLURM it submits the script with the settings of site.env; inside it runs one slot of the run's array:
#
#   start one srun over all nodes (node.sh: checks, Ray, driver) -> wait, watch the heartbeat, pass USR1 and TERM on as a
#   stop file -> read status.json: done, a user's stop, a failure and no progress end the run, and all else goes on
#
# slots.py decides and asks SLURM; this file starts, watches and ends processes. There is no `set -e`: what only reports,
# such as a line to a full disk, ends no slot. DRY_RUN=1 prints every command instead. README.md has the reasons.
set -uo pipefail
trap : USR1  # SLURM may send it at once, where --time is shorter than the signal's lead; bash would die of it
LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "[$(date '+%F %T')] $*"; }
dry() { [[ ${DRY_RUN:-0} == 1 ]]; }

run() {  # run COMMAND...: do it, or print it
  if dry; then
    printf '+'; printf ' %q' "$@"; echo
  else "$@"; fi
}

die() { echo "error: $*" >&2; exit 2; }

again() {  # again COMMAND...: any error of SLURM may pass, so its command is tried again with growing waits
  local wait
  for wait in 1 2 4 8; do
    "$@" && return 0  # without the 0 a trap would return what it interrupted
    sleep "$wait"
  done
  "$@"
}

put_off() {  # where a slot ends before slots.py can decide: what somebody can mend must not use up the other slots
  if [[ -z ${SLURM_ARRAY_JOB_ID:-} ]] || inside_another_job; then return; fi
  local later=${SLURM_ARRAY_JOB_ID}_[$((SLURM_ARRAY_TASK_ID + 1))-$SLURM_ARRAY_TASK_MAX] said
  if ((SLURM_ARRAY_TASK_ID == SLURM_ARRAY_TASK_MAX)); then return; fi
  if said=$(again scontrol update "JobId=$later" "StartTime=now+${RETRY_SECONDS:-600}" 2>&1); then
    echo "the slots that wait start in ${RETRY_SECONDS:-600} s: mend it until then, or scancel $SLURM_ARRAY_JOB_ID" >&2
  else echo "SLURM does not put all slots off that wait: $said" >&2; fi
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

decide() {  # decide DECISION [WORDS...]: sets ANSWER to what slots.py answers; what it says goes to the log
  { ANSWER=$(
    export SCRIPT HOME_DIR CHECKOUT_HERE CONFIG RUN_DIR ATTEMPT_DIR ATTEMPT ARRAY SLOT STARTED RESUMED CALLED_OFF STALL
    file=slots.py
    if [[ $1 =~ ^(arguments|submission|may-submit|submitted)$ ]]; then file=submission.py; fi
    LOG_TO=3 NODE_NAMES="${NODES[*]-}" "${HOST_PYTHON:-python3}" "$LIB/$file" "$@"
  ); } 3>&1
}

nap() { sleep "$1" & wait $! || true; }  # a trap runs at once, not after the sleep

# --- settings ---------------------------------------------------------------------------------------------------------

read_site() {  # read_site FILE TEXT: its settings, exported; a variable that the environment brought wins
  local name changed=()
  declare -gA GIVEN=()
  while IFS= read -r name; do GIVEN[$name]=${!name-}; done < <(compgen -e)
  set -a
  trap 'die "bash cannot read $1: a line of it failed. Write NAME=value, with no blanks around =, and commands that succeed"' ERR
  # shellcheck source=/dev/null
  source /dev/stdin <<<"$2"
  trap - ERR
  set +a
  for name in "${!GIVEN[@]}"; do
    case $name in
      *PATH | TMPDIR | PWD | OLDPWD | SHLVL | _) ;;  # a site adds to a search path, and the rest is the shell's and SLURM's
      NEMO_RL_HOME) ;;
      *) if [[ ${!name-} != "${GIVEN[$name]}" ]]; then changed+=("$name"); export "$name=${GIVEN[$name]}"; fi ;;
    esac
  done
  SITE_NAMES=''  # for a container, where the image's own values win over what is not named: site.env's and the user's
  for name in $(compgen -e); do
    case $name in
      *PATH | SBATCH_* | SLURM_* | NEMO_RL_HOME) continue ;;
      HF_* | WANDB_* | NCCL_* | GLOO_* | NVTE_* | UCX_* | FI_* | RAY_* | NRL_* | NEMO_* | VLLM_* | TORCH* | PYTORCH_* | OMP_* | CUDA_*) ;;
      *) if [[ -n ${GIVEN[$name]+given} ]]; then continue; fi ;;
    esac
    SITE_NAMES+=${SITE_NAMES:+,}$name
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
  if [[ -n ${NEMO_ADA_SITE:-} && $NEMO_ADA_SITE != /* ]]; then export NEMO_ADA_SITE=$PWD/$NEMO_ADA_SITE; fi
  local site=${NEMO_ADA_SITE:-$HOME_DIR/slurm/site.env} text
  [[ -r $site ]] || die "$site is missing: copy slurm/site.env.example to slurm/site.env and fill it in"
  : "${HOST_PYTHON:=python3}"  # it looks for nemo_ada first in the folder where it stands, so it stands in ours
  "$HOST_PYTHON" -c "" 2>/dev/null || die "$HOST_PYTHON does not start on this machine: set HOST_PYTHON to a Python 3.6 or newer, in front of the command (slurm/slots.py needs no packages)"
  text=$(cd -P "$LIB/.." && PYTHONDONTWRITEBYTECODE=1 "$HOST_PYTHON" -m nemo_ada.trust read "$site") || die "$site was not read, see above"
  if LC_ALL=C grep -q $'\r\|^\xef\xbb\xbf' <<<"$text"; then
    die "$site has line ends or a mark of Windows, which bash reads as parts of the text: remove them (sed -i 's/\r\$//; 1s/^\xef\xbb\xbf//' $site)"
  fi
  read_site "$site" "$text"
  [[ -v CONTAINER ]] || die "CONTAINER is not set in $site: a .sqsh file or image for pyxis, or CONTAINER= for bare nodes"
  set -a
  : "${RUN_ROOT:=$HOME_DIR/runs}" "${MOUNTS:=}" "${NODE_SETUP:=}" "${LAUNCH:=nemo-ada train}" "${PYTHON:=python3}"
  : "${RUN_UMASK:=022}" "${CACHE_UMASK:=002}" "${MAX_WITHOUT_STEP:=4}" "${RAY_START:=1}" "${RAY_PORT:=9900}" "${START_SECONDS:=7200}"
  : "${STALL_SECONDS:=1200}" "${POLL_SECONDS:=5}" "${DUMP_SECONDS:=60}" "${END_SECONDS:=60}" "${RAY_SECONDS:=600}"
  : "${SHARED_SECONDS:=60}" "${RETRY_SECONDS:=600}" "${RAY_AUTH:=token}" "${PREFLIGHT:=1}"
  : "${PREEMPT_SECONDS:=25}" "${HEALTH:=1}" "${HEALTH_SECONDS:=300}" "${MIN_TMP_GIB:=20}" "${OMP_NUM_THREADS:=16}"
  : "${GPUS_IN_SLURM:=1}" "${LIMIT_SECONDS:=60}" "${RAY_INTERFACE:=}"
  set +a
  "$HOST_PYTHON" -c "" 2>/dev/null || die "$HOST_PYTHON does not start on this machine: set HOST_PYTHON in $site to a Python 3.6 or newer"
  if [[ -z ${RUNTIME:-} ]]; then if [[ -n $CONTAINER ]]; then RUNTIME=pyxis; else RUNTIME=none; fi; fi
  [[ $RUNTIME =~ ^(pyxis|apptainer|none)$ ]] || die "RUNTIME=$RUNTIME: choose pyxis, apptainer or none (PBS and other schedulers are not supported)"
  if [[ $RUNTIME == none && -n $CONTAINER ]]; then die "RUNTIME=none starts no container, but CONTAINER=$CONTAINER: empty it, or choose pyxis or apptainer"; fi
  if [[ $RUNTIME != none && -z $CONTAINER ]]; then die "RUNTIME=$RUNTIME needs an image: set CONTAINER (a .sqsh for pyxis, a .sif for apptainer)"; fi
  [[ $RAY_AUTH =~ ^(token|disabled)$ ]] || die "RAY_AUTH=$RAY_AUTH: choose token, or disabled for a Ray that cannot"
  [[ $RUN_UMASK =~ ^0?[0-7][2367][0-7]$ ]] || die "RUN_UMASK=$RUN_UMASK: a run is its owner's, so choose 022, or 027 where only the group may read it"
  [[ $CACHE_UMASK =~ ^0?[0-7]{3}$ ]] || die "CACHE_UMASK=$CACHE_UMASK: write three octal digits, such as 002"
  umask "$([[ $SCRIPT == prepare.sh ]] && echo "$CACHE_UMASK" || echo "$RUN_UMASK")"  # a group adds to the cache, and to no run
  local name
  for name in MAX_WITHOUT_STEP RAY_START RAY_PORT START_SECONDS STALL_SECONDS POLL_SECONDS DUMP_SECONDS END_SECONDS \
    RAY_SECONDS SHARED_SECONDS RETRY_SECONDS PREFLIGHT HEALTH HEALTH_SECONDS MIN_TMP_GIB PREEMPT_SECONDS GPUS_IN_SLURM LIMIT_SECONDS; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name=${!name} must be a whole number"
  done
}

# --- outside SLURM: submit --------------------------------------------------------------------------------------------

submit() {
  local said='' refused='' asked log=''
  decide submission "${OPTIONS[@]}" "${OVERRIDES[@]}" || exit 2
  eval "$ANSWER"
  if [[ $SCRIPT == train* ]] && ! dry; then decide may-submit || exit 2; fi
  if [[ ! -w $PWD && $SCRIPT == train* ]]; then log=$RUN_ROOT; [[ -w $log ]] || log=$(dirname "$RUN_DIR"); fi
  if [[ -n $log ]]; then OPTIONS=("--output=$log/slurm-%x-%A.log" "${OPTIONS[@]}"); fi
  export CONFIG RUN_DIR NEMO_ADA_HOME=$HOME_DIR NEMO_ADA_CHECKED=1 NEMO_ADA_GPUS=$GPUS_PER_NODE
  asked=$SLOTS
  until said=$(send 2>&1); do
    [[ $said == "$refused" ]] || echo "$said" >&2
    refused=$said
    if [[ $said =~ Socket\ timed|Zero\ Bytes|Unable\ to\ contact|Unspecified|I/O\ error|communication ]]; then
      die "SLURM gave no clear answer: look at squeue --me, and submit again where the job is not there"
    fi
    if [[ ${SLOTS:-0} == 0 ]]; then die "nothing was submitted: SLURM refuses the job, see above"; fi
    SLOTS=$((SLOTS / 2))
  done
  if dry; then echo "$said"; return; fi
  said=$(sed -nE 's/^([0-9]+)(;.*)?$/\1/p' <<<"$said" | tail -n 1)
  if [[ $SCRIPT == train* ]]; then
    decide submitted "$said"
    if [[ $SLOTS != "$asked" ]]; then echo "SLURM refuses $asked slots for this run (see above), and takes ${SLOTS/#0/1}"; fi
    echo "${SLOTS:-some} slot(s) of $RUN_DIR, one after another, until the run is done; when they are used up, a new submission goes on" | sed 's/^0 /1 /'
    echo "log ${log:-$PWD}/slurm-*-$said.log; nemo-ada status $RUN_DIR"
  fi
  echo "Submitted batch job $said"
}

send() {  # sbatch with SLOTS slots; 0 is a job without an array, for a site that has none
  local array=()
  if [[ $SLOTS == 0 ]]; then array=(--array=); elif [[ $SLOTS == 1 ]]; then array=(--array=1); elif [[ -n $SLOTS ]]; then array=("--array=1-$SLOTS%1"); fi
  only_given CONFIG RUN_DIR NEMO_ADA_HOME NEMO_ADA_CHECKED NEMO_ADA_GPUS "${!SBATCH_@}"
  run sbatch --parsable --export=ALL "${OPTIONS[@]}" "${array[@]}" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "${OVERRIDES[@]}"
}

# --- inside SLURM: one slot -------------------------------------------------------------------------------------------

prepare() {  # until the slot may train
  local code=0
  NODE_LINES=$(if dry; then printf 'node%d\n' $(seq "$SLURM_JOB_NUM_NODES"); else again scontrol show hostnames "$SLURM_JOB_NODELIST"; fi) ||
    die "scontrol does not name this job's nodes"
  mapfile -t NODES <<<"$NODE_LINES"
  ((RAY_START || ${#NODES[@]} == 1)) || die "RAY_START=0 with ${#NODES[@]} nodes: a driver of several nodes needs Ray on each; set RAY_START=1"
  case $RUNTIME in  # in a job: the login node may lack what the nodes have
    pyxis) dry || srun --help 2>&1 | grep container-image >/dev/null || die "this SLURM has no pyxis (srun --container-image): set RUNTIME=apptainer with a .sif file, or CONTAINER= and RUNTIME=none" ;;
    apptainer) dry || command -v "${APPTAINER:-apptainer}" >/dev/null || die "there is no ${APPTAINER:-apptainer} on $(hostname): load its module in site.env, set APPTAINER to its path, or CONTAINER= and RUNTIME=none" ;;
  esac
  STARTED=$(date +%s)
  if dry; then
    ATTEMPT=1 ATTEMPT_DIR=$RUN_DIR/attempts/$SLOT
    echo "+ claim $RUN_DIR for slot $SLOT, make $ATTEMPT_DIR with Ray's token, and write a line into attempts.tsv"
  else
    BEGUN=1
    decide begin || code=$?
    if ((code >= 10)); then exit $((code - 10)); elif ((code)); then put_off; exit "$code"; fi  # below 10: Python crashed
    read -r ATTEMPT ATTEMPT_DIR <<<"$ANSWER"
  fi
  if [[ $RAY_AUTH == token ]]; then export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$ATTEMPT_DIR/ray-token; fi
  RAY_FOLDER=/tmp/nemo-ada-ray-$(random 8)  # on each node; Ray takes the head's name for all of them
  export RAY_FOLDER NEMO_ADA_JOB_END RUN_DIR ATTEMPT_DIR CONFIG STARTED GPUS_PER_NODE NEMO_ADA_HOME=$HOME_DIR NODE_NAMES="${NODES[*]}"
  export PYTHONNOUSERSITE=1  # a home folder's packages must not hide the image's
  export CHECK_FIRST=0
  if ((PREFLIGHT && ATTEMPT == 1)) && [[ -z ${NEMO_ADA_CHECKED:-} && $LAUNCH == nemo-ada\ * ]]; then CHECK_FIRST=1; fi
  ANSWER='<end of the job, epoch seconds>'
  dry || decide job-end
  NEMO_ADA_JOB_END=$ANSWER
  say "attempt $ATTEMPT of array $ARRAY, slot $SLOT on ${#NODES[@]} node(s): ${NODES[*]}"
  if ! dry && [[ -z ${NEMO_ADA_CHECKED:-} && -n $NEMO_ADA_JOB_END && -n $LEAD ]] && ((NEMO_ADA_JOB_END - STARTED <= LEAD)); then
    say "warning: the job is not longer than $LEAD s, at which the signal comes by the header of $SCRIPT: add --signal=B:USR1@SECONDS to sbatch, or start slurm/train.sh, which plans it"
  fi
  say "run directory $RUN_DIR; logs $ATTEMPT_DIR/node-*.log; the job ends at ${NEMO_ADA_JOB_END:-no set time}"
}

random() { od -An "-N$1" -tx1 /dev/urandom | tr -d ' \n'; }  # random BYTES: that many, in hexadecimal digits

step_command() {  # sets STEP: the srun over all nodes, in the container where there is one
  local cpus  # as many as the smallest node has: 72(x2),36
  cpus=$(tr , '\n' <<<"${SLURM_JOB_CPUS_PER_NODE:-${SLURM_CPUS_ON_NODE:-1}}" | sed 's/(.*//' | sort -n | head -n 1)
  local mounts=$HOME_DIR,$RUN_DIR${MOUNTS:+,$MOUNTS}
  STEP=(srun "--nodes=${#NODES[@]}" "--ntasks=${#NODES[@]}" --ntasks-per-node=1
    "--cpus-per-task=$cpus" --kill-on-bad-exit=1 --propagate=NONE --export=ALL)
  if ((INSIDE)); then STEP+=(--overlap); fi  # the shell of `srun --pty bash` is a step that holds the job's CPUs
  case $RUNTIME in
    pyxis) STEP+=("--container-image=$CONTAINER" "--container-mounts=$mounts" "--container-workdir=$HOME_DIR" --no-container-mount-home)
      if [[ -n $SITE_NAMES ]]; then STEP+=("--container-env=$SITE_NAMES"); fi ;;
    apptainer) STEP+=("${APPTAINER:-apptainer}" exec --nv --bind "$mounts" --pwd "$HOME_DIR" "$CONTAINER") ;;
  esac
  STEP+=(bash "$HOME_DIR/slurm/node.sh" "$@")
}

one_command() {  # one_command nemo-ada WORDS...: a job of one node that trains nothing
  NODES=("${SLURM_JOB_NODELIST:-node1}")
  run mkdir -p "$RUN_DIR"
  export TOOL="$*" RUN_DIR NEMO_ADA_HOME=$HOME_DIR NODE_NAMES=${NODES[0]} ATTEMPT_DIR=$RUN_DIR PYTHONNOUSERSITE=1
  step_command "${OVERRIDES[@]}"
  run "${STEP[@]}" || exit
  if dry; then SLURMD_NODENAME=${NODES[0]} bash "$HOME_DIR/slurm/node.sh" "${OVERRIDES[@]}"; fi
}

ask_to_stop() {  # ask_to_stop TEXT: by a stop file that is known to be ours
  if [[ -e $RUN_DIR/STOP ]]; then return; fi
  if dry; then echo "+ write $RUN_DIR/STOP: $1"; return; fi
  echo "$1" >"$RUN_DIR/STOP.tmp" && mv "$RUN_DIR/STOP.tmp" "$RUN_DIR/STOP" && touch -r "$RUN_DIR/STOP" "$RUN_DIR/STOP.ours"
}

on_usr1() {
  if [[ ! -e $RUN_DIR/STOP ]]; then say "USR1: the job's end is near, asking the run to save and stop"; fi
  local left=''
  if [[ ${NEMO_ADA_JOB_END:-} == *[0-9] ]]; then left=": $((NEMO_ADA_JOB_END - $(date +%s))) s are left"; fi
  ask_to_stop "slurm: slot $SLOT is about to end$left"
}

on_term() {  # scancel, preemption, a lost node, or the wall: KILL comes later
  trap '' TERM INT
  local began=$SECONDS ANSWER
  : >"$ATTEMPT_DIR/term"
  ask_to_stop "slurm: TERM of slot $SLOT"
  decide term
  CALLED_OFF=$ANSWER
  say "TERM: $CALLED_OFF; the run has $PREEMPT_SECONDS s to save"
  while kill -0 "$STEP_PID" 2>/dev/null && ((SECONDS - began < PREEMPT_SECONDS)); do nap 1; done
  end_step
}

end_step() {  # our own srun and what it started, nothing else
  local waited=0
  [[ -s $ATTEMPT_DIR/end ]] || : >"$ATTEMPT_DIR/end"
  while kill -0 "$STEP_PID" 2>/dev/null && ((waited < END_SECONDS)); do nap 1; waited=$((waited + 1)); done
  if kill -0 "$STEP_PID" 2>/dev/null; then
    say "the step did not end within $END_SECONDS s: killing it"
    kill -TERM "$STEP_PID" 2>/dev/null
    nap 5
    kill -KILL "$STEP_PID" 2>/dev/null
  fi
}

watch() {  # until the step ends; sets STALL where the watchdog ended it
  local now last=$STARTED asked=$STARTED waited
  STALL='' RESUMED=0
  while kill -0 "$STEP_PID" 2>/dev/null; do
    nap "$POLL_SECONDS"
    now=$(date +%s)
    if ((now - last > POLL_SECONDS + 60)) && [[ $last != "$STARTED" ]]; then RESUMED=$now; say "this job was suspended for $((now - last)) s"; fi
    last=$now
    if ((now - asked >= LIMIT_SECONDS)); then asked=$now; new_limit; fi
    decide stalled
    if [[ -n $ANSWER && -z $STALL ]]; then
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
  wait "$STEP_PID" 2>/dev/null
  if [[ -s $ATTEMPT_DIR/end ]]; then say "this attempt is over: $(<"$ATTEMPT_DIR/end")"; exit 1; fi
  : >"$ATTEMPT_DIR/end"  # a node that SLURM cannot reach may train on
}

new_limit() {  # the job's limit may be extended while it runs, also by a suspension
  decide job-end
  if [[ -n $ANSWER && $ANSWER != "$NEMO_ADA_JOB_END" ]]; then
    say "the job now ends at $ANSWER"
    NEMO_ADA_JOB_END=$ANSWER
    echo "$ANSWER" >"$ATTEMPT_DIR/job-end.tmp" && mv "$ATTEMPT_DIR/job-end.tmp" "$ATTEMPT_DIR/job-end"
  fi
}

slot() {
  local name code=0
  CALLED_OFF=''
  prepare "$@"
  step_command "$@"
  if dry; then
    run "${STEP[@]}"
    for name in "${NODES[@]:0:2}"; do
      echo "# on $name:"
      SLURMD_NODENAME=$name bash "$HOME_DIR/slurm/node.sh" "$@"
    done
    echo "# USR1 before the job's end:"
    on_usr1
    echo "# the next slot begins; at the end of the run:"
    echo "+ write $RUN_DIR/over, then scancel --state=PENDING $ARRAY"
    return
  fi
  trap on_usr1 USR1
  trap on_term TERM INT
  "${STEP[@]}" 2> >(tee -a "$ATTEMPT_DIR/srun.log" >&2) &
  STEP_PID=$!
  watch
  trap '' USR1 TERM INT  # what was decided is done, also where a scancel comes now
  decide ended || code=$?
  if ((INSIDE)) && [[ ! -e $RUN_DIR/over ]]; then
    say "this allocation ends: the same command in a new one goes on from the last save, and HERE=submit in front submits the run"
  fi
  exit "$code"
}

inside_another_job() {  # in salloc's shell or an editor's job the script was not started by sbatch
  [[ -n ${SLURM_JOB_ID:-} && $(basename "$0") != slurm_script ]]
}

ask_where() {  # sets SUBMIT to 1 or 0: HERE=train|submit, else a question on a terminal
  local answer=${HERE:-}
  if [[ -z $answer && -t 0 ]]; then
    read -r -p "This is job $SLURM_JOB_ID. Train in it, or submit the run as a job array of its own? [train/submit] " answer
  fi
  case $answer in
    train) SUBMIT=0 INSIDE=1 ;;
    submit) SUBMIT=1 ;;
    *) die "this shell is inside job $SLURM_JOB_ID: put HERE=train in front to train in it, or HERE=submit to submit a job of its own" ;;
  esac
}

main() {  # main SCRIPT PROJECT_ROOT [SBATCH OPTIONS and OVERRIDES...]
  # These names are ours. What the user's shell has exported under one of them is not meant for us.
  unset ANSWER ARRAY ATTEMPT ATTEMPT_DIR BEGUN CALLED_OFF CHECKOUT_HERE CHECK_FIRST FIRST GIVEN HOME_DIR INSIDE LEAD LOG_TO NODES \
    NODE_LINES NODE_NAMES NODES_ASKED OPTIONS OVERRIDES RAY_FOLDER RESUMED SCRIPT SITE_NAMES SLOT SLOTS STALL STARTED STEP STEP_PID \
    SUBMIT TOOL
  SCRIPT=$1 SLOTS='' SUBMIT=1 INSIDE=0
  if [[ -n ${SLURM_SUBMIT_DIR:-} ]] && ! inside_another_job; then cd "$SLURM_SUBMIT_DIR" || say "warning: relative paths mean $PWD"; fi
  export WORKING_FOLDER=$PWD
  trap '[[ -n ${BEGUN:-} ]] || put_off' EXIT
  load_settings "$2"
  shift 2
  decide arguments "$@" || exit 2
  eval "$ANSWER"  # CONFIG, RUN_DIR, OPTIONS, OVERRIDES and others
  if inside_another_job; then ask_where; elif [[ -n ${SLURM_JOB_ID:-} ]]; then SUBMIT=0; fi
  if ((SUBMIT)); then
    if [[ -n ${SLURM_JOB_ID:-} ]]; then forget_slurm; fi
    submit
    if ! dry; then return; fi
    echo "# what each slot then does:"
    export SLURM_JOB_ID=1 SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=1
    SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-96} SLURM_JOB_NUM_NODES=$NODES_ASKED
    say() { echo "# $*"; }
  elif ((${#OPTIONS[@]})); then
    die "${OPTIONS[0]}: sbatch takes its options in front of the script; slurm/$SCRIPT, started without sbatch, takes them anywhere"
  fi
  ARRAY=$SLURM_JOB_ID SLOT=$SLURM_JOB_ID  # an allocation's, whose shell may be in somebody else's array
  if ((!INSIDE)) && [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then ARRAY=$SLURM_ARRAY_JOB_ID SLOT=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  case $SCRIPT in
    prepare.sh) one_command nemo-ada prepare "$CONFIG" ;;
    export.sh) one_command nemo-ada export "$RUN_DIR" ;;
    *) slot "${OVERRIDES[@]}" ;;
  esac
}

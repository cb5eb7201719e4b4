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
export SLURM_TIME_FORMAT=standard  # the user's shell may name another one, and `date` must read SLURM's times

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

decide() {  # decide DECISION: chain.py looks at the files of the run, with our settings as its environment
  NODE_NAMES="${NODES[*]-}" RUN_DIR=${RUN_DIR-} ATTEMPT_DIR=${ATTEMPT_DIR-} CHAIN=${CHAIN-} STARTED=${STARTED-} SCRIPT=${SCRIPT-} JOB=${JOB-} CALLED_OFF=${CALLED_OFF-} \
    LATER=${LATER-} REQUEUE=${REQUEUE-} MAX_ATTEMPTS=${MAX_ATTEMPTS-} MAX_LEFT_OUT=${MAX_LEFT_OUT:-3} "${HOST_PYTHON:-python3}" "$LIB/chain.py" "$@"
}

say_all() { local line; while IFS= read -r line; do say "$line"; done; }

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

field() {  # field FILE KEY: one scalar of a flat JSON file, empty where there is none
  [[ -r $1 ]] && sed -n "s/.*\"$2\"[[:space:]]*:[[:space:]]*\"\{0,1\}\([^\",}]*\).*/\1/p" "$1" | head -n 1
}

whole() { local value=${1%%.*}; if [[ $value =~ ^[0-9]+$ ]]; then echo "$value"; else echo "$2"; fi; }

newer() { [[ -e $1 && ! $1 -ot $ATTEMPT_DIR/canary ]]; }  # written by this attempt? (by the file server's clock)

refuse_secrets() {  # a command line can be read by every user of the machine (ps, squeue), and is printed and recorded
  local word name
  for word in "$@"; do
    name=${word%%=*}
    name=${name,,}
    if [[ $word == *=* && $name =~ (^|[+~._-])(token|secret|password|passwd|passphrase|credentials?|(api|access|secret|private|auth|wandb)_?key(_id)?)$ &&
      ! $name =~ (^|[._-])(pad|bos|eos|unk|sep|cls|mask|stop|think|image|audio|video)_token$ ]]; then
      die "${word%%=*} is a secret: leave it out and export the variable that its library reads (WANDB_API_KEY, HF_TOKEN), e.g. in site.env"
    fi
  done
}

sort_arguments() {  # sets OPTIONS (of sbatch: words that begin with -), YAMLS and OVERRIDES (of the run: key=value)
  local word
  OPTIONS=() YAMLS=() OVERRIDES=() SEED=()
  for word in "$@"; do
    case $word in
      --force) PREFLIGHT=0 ;;
      --export | --export=*) die "--export: the job needs its whole environment; put variables in front of the command" ;;
      -*) OPTIONS+=("$word") ;;
      run_dir=* | +run_dir=* | ++run_dir=*) die "$word: the job watches RUN_DIR, so name the folder there: RUN_DIR=${word#*=} in front of the command" ;;
      *=* | '~'*) OVERRIDES+=("$word") ;;
      *.yaml | *.yml) YAMLS+=("$word") ;;
      *) die "$word is neither a YAML nor key=value nor an option of sbatch in one word: write --time=08:00:00, not --time 08:00:00" ;;
    esac
  done
}

# --- settings ---------------------------------------------------------------------------------------------------------

read_site() {  # read_site FILE: its settings, exported; a variable that the environment brought wins
  local name changed=()
  declare -gA GIVEN=()
  while IFS= read -r name; do GIVEN[$name]=${!name-}; done < <(compgen -e)
  set -a
  # shellcheck source=/dev/null
  source "$1"
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
  if grep -q $'\r' "$site"; then die "$site has line ends of Windows, which bash reads as parts of the values: remove them (sed -i 's/\r\$//' $site)"; fi
  read_site "$site"
  [[ -v CONTAINER ]] || die "CONTAINER is not set in $site: a .sqsh file or image for pyxis, or CONTAINER= for bare nodes"
  : "${RUN_ROOT:=$HOME_DIR/runs}" "${MOUNTS:=}" "${NODE_SETUP:=}" "${LAUNCH:=nemo-ada train}" "${PYTHON:=python3}"
  : "${REQUEUE:=requeue}" "${MAX_ATTEMPTS:=50}" "${RAY_START:=1}" "${RAY_PORT:=9900}" "${START_SECONDS:=7200}"
  : "${STALL_SECONDS:=1200}" "${POLL_SECONDS:=5}" "${DUMP_SECONDS:=60}" "${END_SECONDS:=60}" "${RAY_SECONDS:=600}"
  : "${SHARED_SECONDS:=60}" "${RETRY_SECONDS:=600}" "${RAY_AUTH:=token}" "${PREFLIGHT:=1}"
  : "${HOST_PYTHON:=python3}" "${MAX_LEFT_OUT:=3}" "${GPUS_IN_SLURM:=1}"
  command -v "$HOST_PYTHON" >/dev/null || die "there is no $HOST_PYTHON on this machine: set HOST_PYTHON in $site to a Python 3.6 or newer (slurm/chain.py needs no packages)"
  : "${PREEMPT_SECONDS:=25}" "${HEALTH:=1}" "${HEALTH_SECONDS:=300}" "${MIN_TMP_GIB:=20}" "${OMP_NUM_THREADS:=16}"
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

name_run() {  # train.sh: the first YAML is CONFIG; overlays join the overrides, and their names the run's
  local yaml name layers=()
  FIRST=() TASK=${SLURM_ARRAY_TASK_ID-}
  if [[ $SCRIPT == train.sh ]] && ((${#YAMLS[@]})); then CONFIG=${YAMLS[0]} YAMLS=("${YAMLS[@]:1}"); fi
  [[ -n ${CONFIG:-} ]] || die "name the YAML of a model, such as configs/qwen2.5-math-7b.yaml, and overlays of configs/methods behind it"
  [[ $CONFIG == /* ]] || CONFIG=$HOME_DIR/$CONFIG
  [[ -r $CONFIG ]] || die "CONFIG=$CONFIG cannot be read: name a YAML in configs/"
  if [[ $CONFIG != */configs/cpu/* && -z ${NEMO_RL_HOME:-} ]]; then
    die "NEMO_RL_HOME is not set: the NeMo-RL v0.7.0 checkout as nodes see it (/opt/nemo-rl in its NGC image)"
  fi
  if [[ $SCRIPT == train.sh ]]; then FIRST=("$CONFIG"); fi  # the next job of the chain gets it as a word again
  name=$(basename "${CONFIG%.*}")
  for yaml in "${YAMLS[@]}"; do
    [[ $yaml == /* ]] || yaml=$HOME_DIR/$yaml
    [[ -r $yaml ]] || die "$yaml cannot be read: name an overlay in configs/methods/"
    layers+=("$yaml")
    name+=-$(basename "${yaml%.*}")
  done
  OVERRIDES=("${layers[@]}" "${OVERRIDES[@]}")
  RUN_DIR=${RUN_DIR:-$RUN_ROOT/$name}
  [[ $RUN_DIR == /* ]] || RUN_DIR=$HOME_DIR/$RUN_DIR
  for name in "${OPTIONS[@]}"; do if [[ $name == --array=* || $name == -a?* ]]; then TASK=0; fi; done
  for name in "${OVERRIDES[@]}"; do
    if [[ -n $TASK && $name =~ ^\+*grpo\.seed= ]]; then die "$name: each task of --array trains with its number as grpo.seed, in a folder of its own; leave $name out"; fi
  done
}

# --- outside SLURM: submit --------------------------------------------------------------------------------------------

asked() {  # asked LONG SHORT (--nodes= -N): by an option of the command line, else the script's header
  local word found
  found=$(sed -n "s/^#SBATCH $1//p" "$HOME_DIR/slurm/$SCRIPT")
  for word in "${OPTIONS[@]}"; do
    case $word in "$1"*) found=${word#*=} ;; "$2"?*) found=${word#"$2"} ;; esac
  done
  echo "$found"
}

FORCE='--force submits all the same'

hole() {  # what this machine lacks to judge a configuration; sets TOOL to its nemo-ada
  TOOL=$(command -v nemo-ada || true)
  if [[ -z $TOOL && -x $HOME_DIR/.venv/bin/nemo-ada ]]; then TOOL=$HOME_DIR/.venv/bin/nemo-ada; fi
  HOLE=
  if [[ -z $TOOL ]]; then
    HOLE="no nemo-ada command here checks the config; run make install"
  elif [[ $CONFIG != */configs/cpu/* && ! -d $CHECKOUT_HERE ]]; then
    HOLE="NEMO_RL_HOME=$CHECKOUT_HERE is not on this machine, so the config was not checked; put NEMO_RL_HOME=CHECKOUT in front of the command"
  fi
}

plan_job() {  # train.sh: the options that the configuration needs go in front of the user's, of which sbatch takes the last
  local said words=(plan --sbatch) option time planned=()
  ((PREFLIGHT)) || return 0
  time=$(asked --time= -t)
  if [[ -n $time ]]; then words+=("--time=$time"); fi
  words+=("$CONFIG" "run_dir=$RUN_DIR" "${OVERRIDES[@]}")
  hole
  if dry; then
    run nemo-ada "${words[@]}"
    if [[ -n $HOLE ]]; then echo "# the plan's options are not shown, because this machine lacks nemo-ada or NeMo-RL's checkout"; return; fi
  elif [[ -n $HOLE ]]; then
    die "nothing was submitted: $HOLE ($FORCE; then give --nodes, --gpus-per-node, --time and --signal)"
  fi
  said=$(NEMO_RL_HOME=$CHECKOUT_HERE "$TOOL" "${words[@]}") || die "nothing was submitted: nemo-ada plan cannot plan this job ($FORCE; then give --nodes, --gpus-per-node, --time and --signal)"
  while IFS= read -r option; do
    if [[ $option == --gpus-per-node=* ]] && ((!GPUS_IN_SLURM)); then continue; fi
    if [[ $option == -* ]]; then planned+=("$option"); fi
  done <<<"$said"
  OPTIONS=("${planned[@]}" "${OPTIONS[@]}")
}

preflight() {  # nemo-ada check: nothing is submitted unchecked unless --force says so
  local said option value code=0
  local words=(check --no-verifier)
  if [[ $CONFIG != */configs/cpu/* ]]; then
    for option in --time=-t --nodes=-N --gpus-per-node=--none; do
      value=$(asked "${option%%=*}=" "${option#*=}")
      if [[ -n $value ]]; then words+=("${option%%=*}=$value"); fi
    done
  fi
  words+=("$CONFIG" "run_dir=$RUN_DIR" "${OVERRIDES[@]}")
  ((PREFLIGHT)) || return 0
  if dry; then run nemo-ada "${words[@]}"; return; fi
  hole
  if [[ -n $HOLE ]]; then die "nothing was submitted: $HOLE ($FORCE)"; fi
  NEMO_RL_HOME=$CHECKOUT_HERE "$TOOL" "${words[@]}" || code=$?
  said=$(decide checked "$code") || die "$said ($FORCE)"
}

submit() {
  dry || command -v sbatch >/dev/null || die "there is no sbatch on this machine. To train on it: nemo-ada train $CONFIG run_dir=$RUN_DIR resume=auto ${OVERRIDES[*]}"
  if [[ $SCRIPT == train.sh ]]; then plan_job; fi
  if [[ $SCRIPT == train* ]]; then preflight; fi
  NEMO_ADA_OPTIONS=$(printf '%s\n' "${OPTIONS[@]}")
  export CONFIG RUN_DIR NEMO_ADA_OPTIONS NEMO_ADA_HOME=$HOME_DIR NEMO_ADA_CHECKED=1
  (
    only_given CONFIG RUN_DIR NEMO_ADA_OPTIONS NEMO_ADA_HOME NEMO_ADA_CHECKED "${!SBATCH_@}"
    run sbatch --export=ALL --chdir="$HOME_DIR" "${OPTIONS[@]}" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "${OVERRIDES[@]}"
  )
}

# --- inside SLURM: one attempt ----------------------------------------------------------------------------------------

clock_ahead() {  # seconds by which this node's clock is ahead of the controller's; 0 where that is not known
  local text
  text=$(scontrol show config 2>/dev/null | sed -n 's/^Configuration data as of //p' || true)
  if [[ $text == 2* ]]; then echo $(($(date +%s) - $(date -d "$text" +%s))); else echo 0; fi
}

job_end() {  # epoch seconds, by this node's clock, at which SLURM ends this job; empty for a job without a limit
  local text
  text=$(squeue -h -j "${JOB:-$SLURM_JOB_ID}" -o %e 2>/dev/null || true)
  [[ $text == 2* ]] || text=$(scontrol show job -o "${JOB:-$SLURM_JOB_ID}" 2>/dev/null | sed -n 's/.* EndTime=\([^ ]*\).*/\1/p' || true)
  if [[ $text == 2* ]]; then echo $(($(date -d "$text" +%s) + ${1:-0})); fi
}

follow() {  # follow DECISION: log what it says; its exit code
  local said code=0
  said=$(decide "$1") || code=$?
  if [[ -n $said ]]; then say_all <<<"$said"; fi
  return "$code"
}

guard() { follow may-continue; }  # may the chain have another attempt? Before one starts and before one is asked for

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
  local owner nodes word folder ahead
  mapfile -t NODES < <(if dry; then printf 'node%d\n' $(seq "$SLURM_JOB_NUM_NODES"); else scontrol show hostnames "$SLURM_JOB_NODELIST"; fi)
  ((RAY_START || ${#NODES[@]} == 1)) || die "RAY_START=0 with ${#NODES[@]} nodes: a driver of several nodes needs Ray on each; set RAY_START=1"
  case $RUNTIME in  # in a job: the login node may lack what the nodes have
    pyxis) dry || srun --help 2>&1 | grep container-image >/dev/null || die "this SLURM has no pyxis (srun --container-image): set RUNTIME=apptainer with a .sif file, or CONTAINER= and RUNTIME=none" ;;
    apptainer) dry || command -v "${APPTAINER:-apptainer}" >/dev/null || die "there is no ${APPTAINER:-apptainer} on $(hostname): load its module in site.env, set APPTAINER to its path, or CONTAINER= and RUNTIME=none" ;;
  esac
  STARTED=$(date +%s)
  CHAIN=${NEMO_ADA_CHAIN:-$SLURM_JOB_ID}
  if ! dry && ! follow space; then
    later "$@"
    exit 1
  fi
  run mkdir -p "$RUN_DIR/attempts"
  owner=$(cat "$RUN_DIR/job" 2>/dev/null || true)
  if [[ -n $owner && $owner != "${JOB:-$SLURM_JOB_ID}" && -n $(squeue -h -j "$owner" -t R,CG -o %i 2>/dev/null || true) ]]; then
    die "job $owner is still running in $RUN_DIR; two jobs must not share a run: scancel $owner or set RUN_DIR"
  fi
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
  write "$RUN_DIR/job" "${JOB:-$SLURM_JOB_ID}"
  if [[ $RAY_AUTH == token ]]; then ray_token; fi
  write "$ATTEMPT_DIR/canary" "$SLURM_JOB_ID"
  if dry; then ATTEMPT=1; else ATTEMPT=$(decide record); fi
  nodes="${NODES[*]}"
  RAY_FOLDER=/tmp/nemo-ada-ray-$(random 8)  # on each node; Ray takes the head's name for all of them
  export RAY_FOLDER NEMO_ADA_JOB_END RUN_DIR ATTEMPT_DIR CONFIG LAUNCH PYTHON NODE_SETUP RAY_START RAY_PORT RAY_SECONDS SHARED_SECONDS \
    END_SECONDS NEMO_ADA_HOME=$HOME_DIR NODE_NAMES="$nodes" HEALTH HEALTH_SECONDS MIN_TMP_GIB OMP_NUM_THREADS PREEMPT_SECONDS STARTED
  GPUS_PER_NODE=${SLURM_GPUS_ON_NODE:-}
  for word in "$CONFIG" "${OVERRIDES[@]}"; do
    if [[ -z ${SLURM_GPUS_ON_NODE:-} && -r $word ]]; then  # a site whose SLURM knows no GPUs: the last YAML that says it
      GPUS_PER_NODE=$(sed -n 's/^ *gpus_per_node: *\([0-9][0-9]*\).*/\1/p' "$word" | tail -n 1 | grep . || echo "$GPUS_PER_NODE")
    fi
    if [[ $word =~ ^\+*cluster\.gpus_per_node=([0-9]+)$ ]]; then GPUS_PER_NODE=${BASH_REMATCH[1]}; fi
  done
  if [[ $CONFIG == */configs/cpu/* ]]; then GPUS_PER_NODE=0; fi
  GPUS_PER_NODE=${GPUS_PER_NODE:-8}
  export GPUS_PER_NODE PYTHONNOUSERSITE=1  # a home folder's packages must not hide the image's
  CHECK_FIRST=0
  if ((PREFLIGHT && ATTEMPT == 1)) && [[ -z ${NEMO_ADA_CHECKED:-} && $LAUNCH == nemo-ada\ * ]]; then CHECK_FIRST=1; fi
  export CHECK_FIRST
  if dry; then
    NEMO_ADA_JOB_END='<end of the job, epoch seconds>'
  else
    ahead=$(clock_ahead)
    if ((ahead > -30 && ahead < 30)); then ahead=0; else say "the clock of $(hostname) is $ahead s ahead of the controller's; the job's end is counted by it all the same"; fi
    NEMO_ADA_JOB_END=$(job_end "$ahead")
  fi
  say "attempt $ATTEMPT of at most $MAX_ATTEMPTS, job $SLURM_JOB_ID on ${#NODES[@]} node(s): $nodes"
  LEAD=$(asked --signal= --none) LEAD=${LEAD##*@}
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
  export TOOL="$*" NODE_SETUP PYTHON RUN_DIR NEMO_ADA_HOME=$HOME_DIR NODE_NAMES=${NODES[0]} ATTEMPT_DIR=$RUN_DIR PYTHONNOUSERSITE=1
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
  local waited=0
  if [[ $ASKED_SLURM == asking && $(decide called-off) == wall ]]; then return 0; fi  # `again` goes on until KILL
  if [[ -n $ASKED_SLURM ]]; then exit 143; fi  # our own requeue ends this script
  CALLED_OFF=$(decide called-off)
  say "TERM: $CALLED_OFF; the run has $PREEMPT_SECONDS s to save"
  : >"$ATTEMPT_DIR/term"
  STATE=interrupted decide why >/dev/null  # SLURM may kill this script as soon as the step has ended
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

stalled() {  # says why, when there is no progress; until this attempt's first step set-up's limit holds
  local now age median limit
  now=$(date +%s)
  if [[ -e $ATTEMPT_DIR/ended ]]; then
    ((now - $(stat -c %Y "$ATTEMPT_DIR/ended") <= END_SECONDS)) || echo "the driver ended, its step did not"
    return
  fi
  if ! newer "$RUN_DIR/heartbeat"; then
    ((now - STARTED > START_SECONDS)) && echo "no first heartbeat within START_SECONDS=$START_SECONDS"
    return
  fi
  age=$((now - $(stat -c %Y "$RUN_DIR/heartbeat")))
  median=$(whole "$(field "$RUN_DIR/heartbeat" median_step_seconds || true)" none)  # of this attempt's steps, else null
  if [[ $median == none ]]; then limit=$START_SECONDS; else limit=$((5 * (median + 1))); fi
  if ((limit < STALL_SECONDS)); then limit=$STALL_SECONDS; fi
  if ((age > limit)); then echo "no heartbeat for $age s (limit $limit s, step $(field "$RUN_DIR/heartbeat" step || true))"; fi
}

watch() {  # until the step ends; sets STALL where the watchdog ended it
  local reason
  STALL=
  while kill -0 "$STEP_PID" 2>/dev/null; do
    nap "$POLL_SECONDS"
    reason=$(stalled || true)
    if [[ -n $reason ]]; then
      STALL=$reason
      say "watchdog: $reason; writing stacks to $ATTEMPT_DIR/stacks-*.txt"
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

verdict() { decide verdict; }  # done | stopped | failed | interrupted | unhealthy, from what this attempt wrote

leave_out() {  # go on without the unhealthy nodes; a running job's ExcNodeList cannot change, so it is a new job
  follow leave-out || return 1
  REQUEUE=resubmit
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
      follow_up
      export NEMO_ADA_CHAIN=$CHAIN NEMO_ADA_CHECKED=1
      (
        trap '' TERM INT
        only_given CONFIG RUN_DIR NEMO_ADA_HOME NEMO_ADA_CHAIN NEMO_ADA_CHECKED
        if ! dry; then forget_slurm; fi
        RUN_DIR=${RUN_BASE:-$RUN_DIR} run again sbatch --export=ALL "${FOLLOW[@]}" "--chdir=$PWD" "$HOME_DIR/slurm/$SCRIPT" "${FIRST[@]}" "$@"
      ) ;;
  esac
}

follow_up() {  # sets FOLLOW: sbatch's options for the next job
  local fields
  if dry; then
    FOLLOW=("--dependency=afterany:$SLURM_JOB_ID" "--nodes=${#NODES[@]}" '--time=<this job'"'"'s>'
      '<account, partition, qos, reservation, constraint, mem of this job>' "${OPTIONS[@]}" '<exclude of this job>')
    return
  fi
  fields=$(squeue -h -j "${JOB:-$SLURM_JOB_ID}" -o '%l|%a|%P|%q|%v|%x|%f' || true)
  mapfile -t FOLLOW < <(JOB_FIELDS=$fields LEAD=${LEAD:-} decide options)
}

wandb_hint() {
  local found
  found=$(find "$RUN_DIR" -maxdepth 5 -type d -name 'offline-run-*' -print -quit 2>/dev/null || true)
  if [[ -n $found ]]; then say "W&B recorded offline; where there is internet: wandb sync $(dirname "$found")/offline-run-*"; fi
}

attempt() {
  local state reason asked='' code=0
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
  if users_stop; then asked=1; fi
  state=$(verdict)
  reason=$(STATE=$state STALL=$STALL USERS_STOP=$asked decide why)
  say "attempt $ATTEMPT ended: $state${STALL:+ ($STALL)}, step $(field "$RUN_DIR/status.json" step || echo 0) of $(field "$RUN_DIR/status.json" max_steps || echo '?'); reason: $reason"
  wandb_hint
  if [[ -n $asked ]]; then rm -f "$RUN_DIR/STOP"; fi
  if [[ $state == "done" ]]; then return 0; fi
  if [[ -n $CALLED_OFF ]]; then exit 143; fi  # on_term has asked for the next job, unless the user ended the chain
  case $state,$reason in
    *,"no space" | *,lock) later "$@" || code=$?; return "$code" ;;
    unhealthy,*) leave_out || return 1 ;;
    failed,"own failure")
      say "not continuing: see $ATTEMPT_DIR/node-${NODES[0]}.log"
      tail -n 20 "$ATTEMPT_DIR/node-${NODES[0]}.log" 2>/dev/null || true
      return 1 ;;
  esac
  if [[ -n $asked ]]; then
    say "ended by a stop file that was not ours: not continuing (the file is removed; a new submission goes on)"
    return 0
  fi
  continue_chain "$@"
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
  refuse_secrets "$@"
  sort_arguments "$@"
  name_run
  SUBMIT=1 INSIDE=0
  if inside_another_job; then ask_where; elif [[ -n ${SLURM_JOB_ID:-} ]]; then SUBMIT=0; fi
  if ((SUBMIT)); then
    if [[ -n ${SLURM_JOB_ID:-} ]]; then forget_slurm; fi
    submit
    if ! dry; then return; fi
    echo "# what the job then does:"
    SLURM_JOB_ID=1 SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-96}
    SLURM_JOB_NUM_NODES=$(asked --nodes= -N)
    SLURM_JOB_NUM_NODES=${SLURM_JOB_NUM_NODES:-1}
    say() { echo "# $*"; }
  elif ((${#OPTIONS[@]})); then
    die "${OPTIONS[0]}: sbatch takes its options in front of the script; slurm/$SCRIPT, started without sbatch, takes them anywhere"
  fi
  if ! dry && [[ -n $TASK && -n ${SLURM_ARRAY_TASK_ID-} ]]; then one_task; fi
  case $SCRIPT in
    prepare.sh) one_command nemo-ada prepare "$CONFIG" ;;
    export.sh)  # overlays have named RUN_DIR
      OVERRIDES=("${OVERRIDES[@]:${#YAMLS[@]}}")
      one_command nemo-ada export "$RUN_DIR" ;;
    *) attempt "${OVERRIDES[@]}" ;;
  esac
}

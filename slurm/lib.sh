# shellcheck shell=bash
# The batch side of a training run: sourced by train_*.sh, which sets CONFIG and calls main.
# Outside SLURM it submits the script with the settings of site.env; inside it runs one attempt of a chain of jobs:
#
#   start one srun over all nodes (node.sh: checks, Ray, driver) -> wait, watch the heartbeat, pass USR1 on as a stop file
#   -> read status.json: done ends the chain, stopped and interrupted continue it, failed ends it
#
# DRY_RUN=1 prints every command instead. README.md has the reasons.
set -euo pipefail

say() { echo "[$(date '+%F %T')] $*"; }
die() { echo "error: $*" >&2; exit 2; }
dry() { [[ ${DRY_RUN:-0} == 1 ]]; }

run() {  # run COMMAND...: do it, or print it
  if dry; then printf '+'; printf ' %q' "$@"; echo; else "$@"; fi
}

write() {  # write FILE TEXT: atomic, so that nobody reads half of it
  if dry; then printf '+ write %q: %s\n' "$1" "$2"; else echo "$2" >"$1.tmp.$$" && mv "$1.tmp.$$" "$1"; fi
}

forget_slurm() {  # this job's variables must not shape the next job
  local name
  for name in "${!SLURM_@}"; do [[ $name == SLURM_CONF ]] || unset "$name"; done
}

nap() { sleep "$1" & wait $! || true; }  # a trap runs at once, not after the sleep

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

# --- settings ---------------------------------------------------------------------------------------------------------

load_settings() {
  HOME_DIR=$(cd "$1" && pwd)
  local site=${NEMO_ADA_SITE:-$HOME_DIR/slurm/site.env}
  [[ -r $site ]] || die "$site is missing: copy slurm/site.env.example to slurm/site.env and fill it in"
  set -a
  # shellcheck source=/dev/null
  source "$site"
  set +a
  [[ -v CONTAINER ]] || die "CONTAINER is not set in $site: a .sqsh file or image for pyxis, or CONTAINER= for bare nodes"
  : "${RUN_ROOT:=$HOME_DIR/runs}" "${MOUNTS:=}" "${NODE_SETUP:=}" "${LAUNCH:=nemo-ada train}" "${PYTHON:=python3}"
  : "${REQUEUE:=requeue}" "${MAX_ATTEMPTS:=50}" "${RAY_START:=1}" "${RAY_PORT:=9900}" "${START_SECONDS:=3600}"
  : "${STALL_SECONDS:=1200}" "${POLL_SECONDS:=5}" "${DUMP_SECONDS:=60}" "${END_SECONDS:=60}" "${RAY_SECONDS:=600}"
  : "${SHARED_SECONDS:=60}" "${RAY_AUTH:=token}"
  [[ $RAY_AUTH =~ ^(token|disabled)$ ]] || die "RAY_AUTH=$RAY_AUTH: choose token, or disabled for a Ray that cannot"
  [[ $REQUEUE =~ ^(requeue|resubmit|none)$ ]] || die "REQUEUE=$REQUEUE: choose requeue, resubmit (where users may not requeue) or none"
  local name
  for name in MAX_ATTEMPTS RAY_START RAY_PORT START_SECONDS STALL_SECONDS POLL_SECONDS DUMP_SECONDS END_SECONDS \
    RAY_SECONDS SHARED_SECONDS; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name=${!name} must be a whole number"
  done
  [[ $CONFIG == /* ]] || CONFIG=$HOME_DIR/$CONFIG
  [[ -r $CONFIG ]] || die "CONFIG=$CONFIG cannot be read: name a YAML in configs/"
  if [[ $CONFIG != */configs/cpu/* && -z ${NEMO_RL_HOME:-} ]]; then
    die "NEMO_RL_HOME is not set: the NeMo-RL v0.7.0 checkout as nodes see it (/opt/nemo-rl in its NGC image)"
  fi
  RUN_DIR=${RUN_DIR:-$RUN_ROOT/$(basename "$CONFIG" .yaml)}
  [[ $RUN_DIR == /* ]] || RUN_DIR=$HOME_DIR/$RUN_DIR
}

# --- outside SLURM: submit --------------------------------------------------------------------------------------------

submit() {
  export CONFIG RUN_DIR NEMO_ADA_HOME=$HOME_DIR
  run sbatch --chdir="$HOME_DIR" "$HOME_DIR/slurm/$SCRIPT" "$@"
}

# --- inside SLURM: one attempt ----------------------------------------------------------------------------------------

job_end() {  # epoch seconds at which SLURM ends this job; empty for a job without a limit
  local text
  text=$(squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null || true)
  [[ $text == 2* ]] || text=$(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* EndTime=\([^ ]*\).*/\1/p' || true)
  if [[ $text == 2* ]]; then date -d "$text" +%s; fi
}

best_step() {  # the furthest step that this run ever reported
  local best seen
  best=$(whole "$(field "$RUN_DIR/status.json" step || true)" 0)
  while IFS=$'\t' read -r _ _ _ seen; do
    if ((seen > best)); then best=$seen; fi
  done < <(cat "$RUN_DIR/attempts.tsv" 2>/dev/null || true)
  echo "$best"
}

# attempts.tsv has a line per attempt: chain, job, start time, best step at its start.
chain_lines() { awk -F'\t' -v chain="$CHAIN" '$1 == chain' "$RUN_DIR/attempts.tsv" 2>/dev/null || true; }

guard() {  # may the chain have another attempt? Called before one starts and before one is asked for
  local count best older
  count=$(chain_lines | wc -l)
  best=$(best_step)
  if ((count >= MAX_ATTEMPTS)); then
    say "stopping: $count attempts are the maximum (MAX_ATTEMPTS); sbatch again to start a new chain"
    return 1
  fi
  if ((count >= 2)); then
    older=$(chain_lines | tail -n 2 | head -n 1 | cut -f 4)
    if ((best <= older)); then
      say "stopping: the last two attempts made no new step beyond $best; their logs are in $RUN_DIR/attempts/"
      return 1
    fi
  fi
}

ray_token() {  # who has not read this file gets no answer from the job's Ray; it is nobody's but ours, and new each time
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$ATTEMPT_DIR/ray-token
  if dry; then echo "+ write a random token to $RAY_AUTH_TOKEN_PATH (mode 600), RAY_AUTH_MODE=token"; return; fi
  (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
}

prepare() {
  local owner nodes
  mapfile -t NODES < <(if dry; then printf 'node%d\n' $(seq "$SLURM_JOB_NUM_NODES"); else scontrol show hostnames "$SLURM_JOB_NODELIST"; fi)
  ((RAY_START || ${#NODES[@]} == 1)) || die "RAY_START=0 with ${#NODES[@]} nodes: a driver of several nodes needs Ray on each; set RAY_START=1"
  STARTED=$(date +%s)
  CHAIN=${NEMO_ADA_CHAIN:-$SLURM_JOB_ID}
  run mkdir -p "$RUN_DIR/attempts"
  owner=$(cat "$RUN_DIR/job" 2>/dev/null || true)
  if [[ -n $owner && $owner != "$SLURM_JOB_ID" && -n $(squeue -h -j "$owner" -t R,CG -o %i 2>/dev/null || true) ]]; then
    die "job $owner is still running in $RUN_DIR; two jobs must not share a run: scancel $owner or set RUN_DIR"
  fi
  guard || exit 1
  ATTEMPT=$(($(chain_lines | wc -l) + 1))
  ATTEMPT_DIR=$RUN_DIR/attempts/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
  run rm -f "$RUN_DIR/STOP"
  run rm -rf "$ATTEMPT_DIR"
  run mkdir -p "$ATTEMPT_DIR"
  write "$RUN_DIR/job" "$SLURM_JOB_ID"
  if [[ $RAY_AUTH == token ]]; then ray_token; fi
  write "$ATTEMPT_DIR/canary" "$SLURM_JOB_ID"
  if ! dry; then printf '%s\t%s\t%s\t%s\n' "$CHAIN" "$SLURM_JOB_ID" "$STARTED" "$(best_step)" >>"$RUN_DIR/attempts.tsv"; fi
  nodes="${NODES[*]}"
  export NEMO_ADA_JOB_END RUN_DIR ATTEMPT_DIR CONFIG LAUNCH PYTHON NODE_SETUP RAY_START RAY_PORT RAY_SECONDS SHARED_SECONDS \
    END_SECONDS NEMO_ADA_HOME=$HOME_DIR NODE_NAMES="$nodes"
  if dry; then NEMO_ADA_JOB_END='<end of the job, epoch seconds>'; else NEMO_ADA_JOB_END=$(job_end); fi
  say "attempt $ATTEMPT of at most $MAX_ATTEMPTS, job $SLURM_JOB_ID on ${#NODES[@]} node(s): $nodes"
  say "run directory $RUN_DIR; logs $ATTEMPT_DIR/node-*.log; the job ends at ${NEMO_ADA_JOB_END:-no set time}"
}

step_command() {  # sets STEP: the srun over all nodes, in the container where there is one
  STEP=(srun "--nodes=${#NODES[@]}" "--ntasks=${#NODES[@]}" --ntasks-per-node=1
    "--cpus-per-task=${SLURM_CPUS_ON_NODE:-1}" --kill-on-bad-exit=1 --export=ALL)
  if [[ -n $CONTAINER ]]; then
    STEP+=("--container-image=$CONTAINER" "--container-mounts=$HOME_DIR,$RUN_DIR${MOUNTS:+,$MOUNTS}"
      "--container-workdir=$HOME_DIR" --no-container-mount-home)
  fi
  STEP+=(bash "$HOME_DIR/slurm/node.sh" "$@")
}

on_usr1() {
  if [[ ! -e $RUN_DIR/STOP ]]; then
    say "USR1: the job's end is near, asking the run to save and stop"
    write "$RUN_DIR/STOP" "slurm: job $SLURM_JOB_ID is about to end"
  fi
}

on_term() {  # scancel, or the wall: too late to save
  say "TERM: ending the run's processes"
  end_step
  exit 143
}

end_step() {  # our own srun and what it started, nothing else
  : >"$ATTEMPT_DIR/end"
  local waited=0
  while kill -0 "$STEP_PID" 2>/dev/null && ((waited < END_SECONDS)); do nap 1; waited=$((waited + 1)); done
  if kill -0 "$STEP_PID" 2>/dev/null; then
    say "the step did not end within $END_SECONDS s: killing it"
    kill -TERM "$STEP_PID" 2>/dev/null || true
    nap 5
    kill -KILL "$STEP_PID" 2>/dev/null || true
  fi
}

stalled() {  # says why, when there is no progress
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
  median=$(whole "$(field "$RUN_DIR/heartbeat" median_step_seconds || true)" 0)
  limit=$((5 * (median + 1) > STALL_SECONDS ? 5 * (median + 1) : STALL_SECONDS))
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
}

verdict() {  # done | stopped | failed | interrupted, from what this attempt wrote
  local state='' code
  code=$(cat "$ATTEMPT_DIR/driver.exit" 2>/dev/null || true)
  if newer "$RUN_DIR/status.json"; then state=$(field "$RUN_DIR/status.json" state || true); fi
  case $state:$code in
    done:* | stopped:* | failed:*) echo "$state" ;;
    *:75) echo stopped ;;
    running:1) echo interrupted ;;       # Ray ends a driver whose head is lost with 1, from outside Python
    *:0 | *:1 | *:2) echo failed ;;      # ended by itself without saying how
    *) if [[ -e $ATTEMPT_DIR/refused ]]; then echo failed; else echo interrupted; fi ;;  # killed, stalled, node lost
  esac
}

continue_chain() {
  if ! guard; then return 1; fi
  case $REQUEUE in
    none) say "REQUEUE=none: submit $SCRIPT again to continue" ;;
    requeue)
      say "requeueing job $SLURM_JOB_ID"
      run scontrol requeue "$SLURM_JOB_ID"
      if ! dry; then nap 60; fi ;;  # SLURM ends this script now
    resubmit)
      local limit
      limit=$(if dry; then echo '<time limit>'; else squeue -h -j "$SLURM_JOB_ID" -o %l; fi)
      (
        job=$SLURM_JOB_ID nodes=${#NODES[@]}
        export NEMO_ADA_CHAIN=$CHAIN
        if ! dry; then forget_slurm; fi
        run sbatch "--dependency=afterany:$job" "--nodes=$nodes" "--time=$limit" "--chdir=$PWD" \
          "$HOME_DIR/slurm/$SCRIPT" "$@"
      ) ;;
  esac
}

wandb_hint() {
  local found
  found=$(find "$RUN_DIR" -maxdepth 5 -type d -name 'offline-run-*' -print -quit 2>/dev/null || true)
  if [[ -n $found ]]; then say "W&B recorded offline; where there is internet: wandb sync $(dirname "$found")/offline-run-*"; fi
}

attempt() {
  local state
  prepare
  step_command "$@"
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
  "${STEP[@]}" &
  STEP_PID=$!
  watch
  trap '' USR1
  state=$(verdict)
  say "attempt $ATTEMPT ended: $state${STALL:+ ($STALL)}, step $(field "$RUN_DIR/status.json" step || echo 0) of $(field "$RUN_DIR/status.json" max_steps || echo '?')"
  wandb_hint
  case $state in
    done) return 0 ;;
    failed)
      say "not continuing: see $ATTEMPT_DIR/node-${NODES[0]}.log"
      tail -n 20 "$ATTEMPT_DIR/node-${NODES[0]}.log" 2>/dev/null || true
      return 1 ;;
    stopped)
      if [[ -e $RUN_DIR/STOP && $(cat "$RUN_DIR/STOP") != slurm:* ]]; then
        say "stopped by a stop file that was not ours: not continuing"
        return 0
      fi ;;
  esac
  continue_chain "$@"
}

main() {  # main SCRIPT PROJECT_ROOT [OVERRIDES...]
  SCRIPT=$1
  load_settings "$2"
  shift 2
  refuse_secrets "$@"
  if [[ -z ${SLURM_JOB_ID:-} ]]; then
    submit "$@"
    if ! dry; then return; fi
    echo "# what the job then does:"
    SLURM_JOB_ID=1 SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-96}
    SLURM_JOB_NUM_NODES=$(sed -n 's/^#SBATCH --nodes=//p' "$HOME_DIR/slurm/$SCRIPT")
    say() { echo "# $*"; }
  fi
  attempt "$@"
}

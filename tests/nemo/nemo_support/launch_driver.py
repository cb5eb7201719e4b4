"""`nemo-ada train` in a process of its own, with the tiny policy and engine where NeMo-RL starts GPU workers.

    python -m nemo_support.launch_driver RESULTS '[{"arguments": ["train", "config.yaml", "resume=auto"], ...}, ...]'

Everything else is real: command line, configuration, data set, environment, logger, checkpoints, NeMo-RL's `setup`
and loop. Launches of a list run one after the other; RESULTS gets the exit code of each as a line. Keys of a launch:

    arguments   of `nemo-ada`
    fault       {"kind": one of KINDS, "phase": one of PHASES, "after": updates}: strikes once, when the phase begins
                for the first time after this process has made so many updates
    seconds     of the job that are left when the launch begins
    own_ray     true: Ray's processes are descendants of this one, not those that RAY_ADDRESS names
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from nemo_support.compat import use_typing_extensions_typed_dict

RIGHT_ANSWER, WRONG_ANSWER = r"\boxed{1}", r"\boxed{0}"


def label(prompt: str, draw: int) -> str:
    """The first token of a response: which it is depends on the prompt's number and the draw alone."""
    number = int("".join(character for character in prompt if character.isdigit()))
    return RIGHT_ANSWER if (number * 7 + draw * draw * 3) % 10 < number % 10 else WRONG_ANSWER


def tokenizer() -> Any:
    """The tiny tokenizer with two answers for the math verifier."""
    from nemo_support.tiny_model import tiny_tokenizer

    made = tiny_tokenizer()
    made.add_tokens([RIGHT_ANSWER, WRONG_ANSWER])
    return made


def kill_children(name: str) -> None:
    """End this process's descendants whose command line holds the name (`tests` is NeMo-RL's package here)."""
    found = [child for child in psutil.Process().children(recursive=True) if name in " ".join(child.cmdline())]
    if not found:
        raise RuntimeError(f"no process {name} to kill")
    for child in found:
        child.kill()


def write_to(descriptor: int) -> None:
    """Let this process's output, and that of its libraries, go to another file."""
    for output in (1, 2):
        os.dup2(descriptor, output)
    os.close(descriptor)


def lose_reader() -> None:
    """Let everything that this process writes fail with EPIPE, as after `| head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    write_to(writer)


def close_terminal() -> None:
    """Let everything that this process writes fail, and send the signal of a closed terminal."""
    lose_reader()
    os.kill(os.getpid(), signal.SIGHUP)


PHASES = ("refit", "sampling", "scoring", "log-probabilities", "update", "evaluation", "save")
KINDS: dict[str, Callable[[Path], None]] = {
    "none": lambda _run_dir: None,
    "driver killed": lambda _run_dir: os.kill(os.getpid(), signal.SIGKILL),
    "environment killed": lambda _run_dir: kill_children("ray::MathJudge"),
    "Ray head killed": lambda _run_dir: kill_children("gcs_server"),
    "engine killed": lambda _run_dir: kill_children("ray::EngineProcess"),
    "stop file": lambda run_dir: (run_dir / "STOP").touch(),
    "disk of the log full": lambda _run_dir: write_to(os.open("/dev/full", os.O_WRONLY)),
    "terminal closed": lambda _run_dir: close_terminal(),
}


class Strike:
    """A fault that waits for its moment. Sampling and scoring are those of training, not of an evaluation."""

    def __init__(self, run_dir: Path, kind: str = "none", phase: str = "", after: int = 0) -> None:
        self.updates = 0
        self._run_dir, self._kind, self._phase, self._after = run_dir, kind, phase, after
        self._evaluating = self._struck = False

    def at(self, phase: str) -> None:
        """A phase begins."""
        inside = self._evaluating and phase != "evaluation"
        if phase == self._phase and self.updates >= self._after and not self._struck and not inside:
            self._struck = True
            KINDS[self._kind](self._run_dir)

    def before(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function (or, if it was wrapped for an earlier launch, its original), which begins that phase."""
        original = getattr(function, "__wrapped__", function)

        @functools.wraps(original)
        def wrapped(*args: Any, **rest: Any) -> Any:
            self.at(phase)
            self._evaluating, outer = self._evaluating or phase == "evaluation", self._evaluating
            try:
                return original(*args, **rest)
            finally:
                self._evaluating = outer

        return wrapped


def install(launch: dict[str, Any]) -> None:
    """Put the tiny parts where nemo_rl.algorithms.grpo.setup makes workers."""
    import nemo_rl.algorithms.grpo as loop
    import nemo_rl.experience.rollouts as rollouts
    import ray

    from nemo_support.tiny_generation import TinyGeneration, WeightChannel
    from nemo_support.tiny_model import tiny_model
    from nemo_support.tiny_policy import TinyPolicy

    @ray.remote(num_cpus=0)
    class EngineProcess:
        """The process of a vLLM worker: each response asks it."""

        def alive(self) -> bool:
            return True

    words = tokenizer()
    channel = WeightChannel()
    run_dir = Path(next(part for part in launch["arguments"] if part.startswith("run_dir=")).partition("=")[2])
    strike = Strike(run_dir, **launch.get("fault", {}))

    class Policy(TinyPolicy):
        def __init__(
            self, cluster: Any, config: dict[str, Any], tokenizer: Any, weights_path: Any, **rest: Any
        ) -> None:
            learner = config["megatron_cfg"]["optimizer"]
            super().__init__(
                {**config, "optimizer": {"kwargs": {"lr": learner["lr"]}}},
                tiny_model(len(words), seed=1),
                tokenizer,
                channel,
                weights_path=weights_path,
                optimizer_path=rest["optimizer_path"],
            )

        def get_logprobs(self, *args: Any, **rest: Any) -> Any:
            strike.at("log-probabilities")
            return super().get_logprobs(*args, **rest)

        def train(self, *args: Any, **rest: Any) -> Any:
            strike.at("update")
            made = super().train(*args, **rest)
            strike.updates += 1
            return made

        def save_checkpoint(self, *args: Any, **rest: Any) -> None:
            super().save_checkpoint(*args, **rest)
            strike.at("save")

        def print_node_ip_and_gpu_id(self) -> None:
            """There is none."""

    class Generation(TinyGeneration):
        def __init__(self, cluster: Any, config: dict[str, Any]) -> None:
            super().__init__(
                config,
                tiny_model(len(words), seed=2),
                words,
                channel,
                max_length=config["vllm_cfg"]["max_model_len"],
                labels=label,
            )
            if launch.get("fault", {}).get("kind") == "engine killed":
                self.worker_group = SimpleNamespace(workers=[EngineProcess.remote()])

        def _refit(self) -> Any:
            strike.at("refit")
            return super()._refit()

        def generate(self, *args: Any, **rest: Any) -> Any:
            strike.at("sampling")
            return super().generate(*args, **rest)

        async def generate_async(self, *args: Any, **rest: Any) -> Any:
            strike.at("sampling")
            if hasattr(self, "worker_group"):
                await self.worker_group.workers[0].alive.remote()
            async for output in super().generate_async(*args, **rest):
                yield output

    rollouts.calculate_rewards = strike.before("scoring", rollouts.calculate_rewards)
    loop.validate = strike.before("evaluation", loop.validate)
    loop.Policy, loop.VllmGeneration = Policy, Generation


def own_ray() -> None:
    """Start a Ray instance that ends with this process, and point RAY_ADDRESS at it."""
    command = [sys.executable, "-m", "nemo_support.private_ray"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    os.environ["RAY_ADDRESS"] = child.stdout.readline().strip()


def main(results: Path, launches: list[dict[str, Any]]) -> None:
    """Run the launches; the process ends with the code of the last one."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup ignore it, and so would the run
    use_typing_extensions_typed_dict()
    import ray

    from nemo_ada.cli.main import main as cli
    from nemo_ada.run.job_control import JOB_END

    if any(launch.get("own_ray") for launch in launches):
        own_ray()
    code: Any = 0
    for launch in launches:
        install(launch)
        os.environ.pop(JOB_END, None)
        if "seconds" in launch:
            os.environ[JOB_END] = str(time.time() + launch["seconds"])
        sys.argv = ["nemo-ada", *launch["arguments"]]
        try:
            cli()
        except SystemExit as ended:
            code = ended.code or 0
        with results.open("a") as file:
            file.write(f"{code}\n")
        ray.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

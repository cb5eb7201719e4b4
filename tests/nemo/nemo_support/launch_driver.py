"""`nemo-ada train` in a process of its own, with the tiny policy and engine where NeMo-RL starts GPU workers.

    python -m nemo_support.launch_driver RESULTS '[{"arguments": ["train", "config.yaml", "resume=auto"], ...}, ...]'

Everything else is real: command line, configuration, data set, environment, logger, checkpoints, NeMo-RL's `setup`
and loop. Launches of a list run one after the other; RESULTS gets the exit code of each as a line. Keys of a launch:

    arguments   of `nemo-ada`
    stop_in     training step of the process, from 1, in which the stop file appears
    kill_in     training step in which the process kills itself
    seconds     of the job that are left when the launch begins
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

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


def install(launch: dict[str, Any]) -> None:
    """Put the tiny parts where nemo_rl.algorithms.grpo.setup makes workers."""
    import nemo_rl.algorithms.grpo as loop

    from nemo_support.tiny_generation import TinyGeneration, WeightChannel
    from nemo_support.tiny_model import tiny_model
    from nemo_support.tiny_policy import TinyPolicy

    words = tokenizer()
    channel = WeightChannel()
    run_dir = Path(next(part for part in launch["arguments"] if part.startswith("run_dir=")).partition("=")[2])

    def before_train(step: int) -> None:
        if step + 1 == launch.get("stop_in"):
            (run_dir / "STOP").touch()
        if step + 1 == launch.get("kill_in"):
            os.kill(os.getpid(), signal.SIGKILL)

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
                before_train=before_train,
            )

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

    loop.Policy, loop.VllmGeneration = Policy, Generation


def main(results: Path, launches: list[dict[str, Any]]) -> None:
    """Run the launches; the process ends with the code of the last one."""
    use_typing_extensions_typed_dict()
    import ray

    from nemo_ada import cli
    from nemo_ada.jobcontrol import JOB_END

    code: Any = 0
    for launch in launches:
        install(launch)
        os.environ.pop(JOB_END, None)
        if "seconds" in launch:
            os.environ[JOB_END] = str(time.time() + launch["seconds"])
        sys.argv = ["nemo-ada", *launch["arguments"]]
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        with results.open("a") as file:
            file.write(f"{code}\n")
        ray.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

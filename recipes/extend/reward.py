"""A reward: a response and its answer in, a number from 0 to 1 out.

nemo-ada train configs/cpu/jsonl.yaml task.path=my.jsonl +task.reward=reward:close_enough
nemo-ada eval MODEL --data my.jsonl --out DIR --reward reward:close_enough
slurm/train.sh configs/qwen2.5-math-7b.yaml +env.ada_math.reward=reward:close_enough
AdaRollout("reward:close_enough", {"preset": "ada_seq_balance"})     # TRL; the rows have a column `answer`
"""

import re


def close_enough(response: str, answer: str) -> float:
    """1 where the last number of the response is the answer, a half where it is within 10 %."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    if not numbers:
        return 0.0
    given, wanted = float(numbers[-1]), float(answer)
    return 1.0 if given == wanted else 0.5 * (abs(given - wanted) <= 0.1 * abs(wanted))

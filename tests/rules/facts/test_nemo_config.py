"""What is derived from a config where NeMo-RL and vLLM have defaults of their own."""

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.nemo_config import EngineFacts


def test_an_a100_decodes_fewer_answers_at_once_by_vllms_own_default():
    """vLLM gives 1,024 places to cards of 70 GiB and more, and 256 to others and to an A100 of any size."""
    few, many = (EngineFacts.of(Values({"card": card}), 1, 8).max_num_seqs for card in ("A100", "H200"))
    assert (few, many) == (256, 1024)

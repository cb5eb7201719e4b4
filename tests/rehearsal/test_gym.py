"""A rehearsal over NeMo-Gym: its requests, its seeds, what shrinks, and vLLM's moved names."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import command, gym, installation, problems
from nemo_ada.rehearsal.report import SERVERS, Events, Report
from nemo_ada.rehearsal.shrink import BLOCK_TOKENS, GYM_ROW, PROMPT_TOKENS, Layout, shrink
from nemo_ada.rehearsal.standins import nemo_rl_gym, vllm_http
from nemo_ada.rehearsal.standins.replacing import Names
from nemo_ada.rehearsal.standins.responses import REQUESTS
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.finding import error

ROOT = Path(__file__).resolve().parents[2]
HERMES = re.compile(r"<tool_call>(.*?)</tool_call>")  # as vLLM's parser looks for calls


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def paths_of(*names: str) -> list[str]:
    model = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
    return [model, *(f"resources_servers/{name}/configs/{name}.yaml" for name in names)]


def test_environments_are_those_of_the_config() -> None:
    assert gym.find_environments(paths_of(gym.MATH, gym.OFFICE)) == [gym.MATH, gym.OFFICE]


@pytest.mark.parametrize("paths", [None, paths_of(), paths_of(gym.MATH, "swerl_gen")])
def test_an_environment_without_problems_is_refused(paths: list[str] | None) -> None:
    with pytest.raises(UserError, match="math_with_judge"):
        gym.find_environments(paths)


@pytest.mark.parametrize("names", [[gym.MATH], [gym.OFFICE], [gym.MATH, gym.OFFICE]])
def test_requests_name_their_agent_and_fill_a_block(names: list[str], tmp_path: Path) -> None:
    texts = gym.write_requests(tmp_path, names)
    rows = [*lines(tmp_path / problems.TRAIN), *lines(tmp_path / problems.VALIDATION)]
    assert {row["agent_ref"]["name"] for row in rows} == {f"{name}_simple_agent" for name in names}
    inputs = [row["responses_create_params"]["input"][0]["content"] for row in rows]
    assert len(set(inputs)) == len(rows) and len(lines(tmp_path / problems.VALIDATION)) == problems.VALIDATION_ROWS
    for text in inputs:
        pieces = problems.PIECES.findall(text)
        assert len(pieces) <= PROMPT_TOKENS
        assert sum(len(piece) == 1 and piece != " " for piece in pieces) > BLOCK_TOKENS
    assert {piece for text in texts for piece in problems.PIECES.findall(text)} <= set(problems.make_vocabulary(texts))


def test_the_small_model_can_delete_every_email_with_one_token(tmp_path: Path) -> None:
    tokens = problems.make_vocabulary(gym.write_requests(tmp_path, [gym.OFFICE]))
    calls = [json.loads(found) for token in tokens for found in HERMES.findall(token)]
    assert not any(" " in found for token in tokens for found in HERMES.findall(token))
    deleted = {call["arguments"]["email_id"] for call in calls if call["name"] == gym.DELETE}
    wanted = {json.loads(row["ground_truth"][0]["arguments"])["email_id"] for row in lines(tmp_path / problems.TRAIN)}
    assert deleted == wanted == set(gym.EMAILS)
    tools = lines(tmp_path / problems.TRAIN)[0]["responses_create_params"]["tools"]
    assert {call["name"] for call in calls} == {tool["name"] for tool in tools}


def test_every_server_gets_the_one_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for _ in range(2):  # the folder may stay from an earlier rehearsal
        gym.link_servers(tmp_path / "gym", [gym.MATH], python)
    links = {str(path.parent.relative_to(tmp_path / "gym")) for path in (tmp_path / "gym").glob("*/*/.venv")}
    assert links == {*gym.COMMON_SERVERS, f"resources_servers/{gym.MATH}"}
    assert (tmp_path / "gym" / "resources_servers" / gym.MATH / ".venv").readlink() == tmp_path / "env"


def request(text: str, **params: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}], **params}, "agent_ref": "a"}


def seed(row: dict[str, Any]) -> int:
    extra = json.loads(row["responses_create_params"]["metadata"][nemo_rl_gym.EXTRA])
    return int(extra["seed"])


def test_each_response_has_a_seed_that_a_phase_repeats() -> None:
    phases = []
    for _ in range(2):
        REQUESTS.clear()
        rows = [request("one"), request("two", metadata={"mine": "1"}), request("one")]
        nemo_rl_gym.give_seeds(rows)
        before = [seed(row) for row in rows]
        nemo_rl_gym.give_seeds(rows)  # v0.7.0's function is called twice for a response
        assert [seed(row) for row in rows] == before and len(set(before)) == 3
        assert all(0 <= one < 2**31 for one in before)
        assert rows[1]["responses_create_params"]["metadata"]["mine"] == "1"
        phases.append(before)
    assert phases[0] == phases[1]


def test_both_kinds_of_rollout_functions_keep_their_kind() -> None:
    REQUESTS.clear()
    seen: list[int] = []

    def plain(**given: Any) -> int:
        seen.append(seed(given["input_batch"]["extra_env_info"][0]))
        return 7

    async def streaming(**given: Any) -> Any:
        seen.append(seed(given["input_batch"]["extra_env_info"][0]))
        yield 8

    async def all_of(generator: Any) -> list[int]:
        return [one async for one in generator]

    (change,) = nemo_rl_gym.REPLACEMENTS.changes
    assert change.apply is not None
    for function in (plain, streaming):
        module: Any = ModuleType("rollouts")
        module.run_async_nemo_gym_rollout = function
        change.apply(Names(module, change.names))
        result = module.run_async_nemo_gym_rollout(input_batch={"extra_env_info": [request("one")]})
        assert result == 7 if function is plain else asyncio.run(all_of(result)) == [8]
    assert len(set(seen)) == 2


@pytest.mark.parametrize("name", ["math", "tools"])
def test_our_configs_shrink(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    if not installation.read_site_setting("NEMO_RL_HOME"):
        pytest.skip("NEMO_RL_HOME is not set")
    config = load_config(Path(f"configs/qwen3-4b-instruct-2507-gym-{name}.yaml"), [])
    s, _ = shrink(config, model=tmp_path / "model", data=tmp_path / "data", out=tmp_path / "run", steps=3)
    assert gym.find_environments(s.get(gym.PATHS)) == [gym.MATH if name == "math" else gym.OFFICE]
    assert s.get("data.train.dataset_name") == "NemoGymDataset"
    assert s.get("data.train.data_path") == str(tmp_path / "data" / problems.TRAIN)
    assert s.get("env.nemo_gym.uv_venv_dir") == str(tmp_path / "gym")
    assert s.get("policy.max_total_sequence_length") == GYM_ROW
    assert s.get("policy.generation.vllm_cfg.expose_http_server") is True


@pytest.mark.parametrize(("key", "level"), [("data.train.data_path", "warning"), ("data.train.dataset_name", "error")])
def test_data_that_are_not_here_do_not_end_a_rehearsal(key: str, level: str) -> None:
    config = {"env": {"should_use_nemo_gym": True}, "data": {"train": {"data_path": "/nowhere.jsonl"}}}
    assert command._accept_missing_data(error(key, "no"), config).level == level
    assert command._accept_missing_data(error(key, "no"), {**config, "env": {}}).level == "error"


def test_gyms_interpreter_is_named_only_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (installation.POLICY, installation.ENGINE, installation.GYM):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    for variable in (installation.POLICY, installation.ENGINE):
        (tmp_path / variable).touch()
    for needed in (False, True):
        monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path / "none"))
        with pytest.raises(UserError) as found:
            installation.find(gym=needed)
        assert (installation.GYM in str(found.value)) is needed


def test_the_report_names_the_servers_only_over_gym() -> None:
    for events in (Events([{"event": "end", "phase": SERVERS, "seconds": 21.5}]), Events([])):
        report = Report("a.yaml", "rehearse", Layout("megatron", 1, 1, 1, 1, 1), [], [])
        report.take_phases(events)
        assert (SERVERS in report.markdown()) is ("21.5" in report.markdown()) is bool(events.lines)


class Renderer:
    """Today's OnlineRenderer: it calls its own preprocess_chat with `parser`."""

    def __init__(self, model_config: str, *, request_logger: None) -> None:
        self.model_config = model_config

    async def preprocess_chat(self, request: str, parser: str | None = None, *, skip: bool = False) -> tuple[Any, ...]:
        return request, parser, skip

    async def render_chat(self, request: str) -> Any:
        return await self.preprocess_chat(request, parser="hermes")


def test_a_server_for_vllm_0_20_runs_on_todays_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("vllm.renderers.online_renderer")
    module.OnlineRenderer = Renderer
    for name in ("vllm", "vllm.renderers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    base: Any = vllm_http._make_serving_render()

    class Theirs(base):  # type: ignore[misc]  # as NeMo-RL's subclass
        async def preprocess_chat(
            self, request: str, tool_parser: str | None = None, reasoning_parser: None = None, *, skip: bool = False
        ) -> Any:
            found = await super().preprocess_chat(
                request=request, tool_parser=tool_parser, reasoning_parser=reasoning_parser, skip=True
            )
            return "theirs", *found

    served = Theirs(model_config="m", model_registry="unused", request_logger=None)
    assert served.model_config == "m"
    assert asyncio.run(served.render_chat("hello")) == ("theirs", "hello", "hermes", True)


def test_moved_arguments_and_classes_keep_their_old_names() -> None:
    assert vllm_http._rename_arguments({"openai_serving_render": 1, "models": 2}) == {"online_renderer": 1, "models": 2}
    module: Any = ModuleType("serving")

    class ServingTokenization:
        def __init__(self, *, models: str, online_renderer: str) -> None:
            self.made = models, online_renderer

    module.ServingTokenization = ServingTokenization
    change = next(one for one in vllm_http.REPLACEMENTS.changes if one.module.endswith("tokenize.serving"))
    assert change.apply is not None
    change.apply(Names(module, ()))
    made = module.OpenAIServingTokenization(models="m", engine_client="e", openai_serving_render="r")
    assert made.made == ("m", "r")


def test_a_module_that_vllm_moved_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_http, "CHAT", "chat_utils_of_vllm_0_25")
    module: Any = ModuleType("vllm.renderers.chat_utils")
    change = next(one for one in vllm_http.REPLACEMENTS.changes if one.module == module.__name__)
    assert change.apply is not None
    try:
        for _ in range(2):  # the name may be taken already
            change.apply(Names(module, ()))
        assert sys.modules[vllm_http.CHAT] is module
    finally:
        sys.modules.pop(vllm_http.CHAT, None)


def test_an_output_is_put_in_the_loop_of_its_request() -> None:
    class RequestOutputCollector:
        def __init__(self) -> None:
            self.put_by: list[int] = []
            self.ready = asyncio.Event()

        def put(self, output: int) -> None:
            self.put_by.append(threading.get_ident())
            self.ready.set()

    module: Any = ModuleType("vllm.v1.engine.output_processor")
    module.RequestOutputCollector = RequestOutputCollector
    change = next(one for one in vllm_http.REPLACEMENTS.changes if one.module == module.__name__)
    assert change.apply is not None
    change.apply(Names(module, change.names))

    async def put_from_another_thread() -> list[int]:
        made = RequestOutputCollector()
        await asyncio.to_thread(made.put, 1)
        await made.ready.wait()
        made.put(2)
        return made.put_by

    assert asyncio.run(put_from_another_thread()) == [threading.get_ident()] * 2
    alone = RequestOutputCollector()  # no loop runs
    alone.put(1)
    assert alone.put_by == [threading.get_ident()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["math", "tools"])
def test_a_whole_rehearsal_passes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gym's own servers, NeMo-RL's HTTP server on the CPU vLLM and its Megatron workers: three steps and a resume."""
    try:
        installation.find(gym=True)
    except UserError as missing:
        pytest.skip(str(missing))
    monkeypatch.chdir(ROOT)
    path = Path(f"configs/qwen3-4b-instruct-2507-gym-{name}.yaml")
    code = command.rehearse(path, [], steps=3, resume=True, keep=tmp_path / "out", say=print)
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert code == 0, report["failure"] or [number for number in report["numbers"] if not number["passed"]]
    steps = Events.read(tmp_path / "out" / "undisturbed.events.jsonl").steps()
    assert max(numbers["turns_per_sample/max"] for numbers in steps.values()) > 1 or name == "math"

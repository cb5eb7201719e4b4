"""NeMo-RL's data plane: TransferQueue comes from the policy interpreter."""

from __future__ import annotations

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("TransferQueue by the commit that main pins", "the registry's release of it")


@REPLACEMENTS.after(
    "nemo_rl.data_plane.adapters.transfer_queue",
    "_patch_tq_actor_runtime_env",
    why="Ray would install the pinned commit from GitHub for its actors; their interpreter has a release.",
)
def _install_nothing(names: Names) -> None:
    names.put("_patch_tq_actor_runtime_env", lambda: None)

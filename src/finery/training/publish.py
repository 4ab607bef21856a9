"""Publishing a model: exactly the files of design section 3, and bytes that depend on the model alone."""

from __future__ import annotations

import json
import re
import shutil
from enum import Enum
from pathlib import Path
from typing import Any

from finery.errors import InputError, StageError
from finery.training.folders import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    MODEL_INFO,
    TOKENIZER,
    chat_template_sha256,
    is_adapter,
    read_json,
    tokenizer_sha256,
)
from finery.training.probes import first_difference

SHARD_SIZE = "4GB"
_ALLOWED = re.compile(
    r"(config|generation_config|adapter_config|model|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)"
    r"\.json|(model|adapter_model)(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|merges\.txt|vocab\.txt"
    r"|(tokenizer|spiece)\.model|chat_template\.jinja|additional_chat_templates/[\w.-]+\.jinja"
)
# where a folder came from, and when and by whom it was written: nothing of it may reach an output
_PROVENANCE = ("_name_or_path", "name_or_path", "is_local", "local_files_only", "_commit_hash", "auto_map", "backend")


def publish_model(
    model: Any,
    tokenizer: Any,
    folder: Path,
    *,
    base: dict[str, str] | None = None,
    quantization: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a model output: config, generation config, safetensors, tokenizer, chat template and model.json, last.

    Args:
        model: a causal LM of transformers, or a PeftModel, of which the adapter `default` is written.
        tokenizer: its tokenizer; it is reloaded as any user of the folder would and compared on probes (case T7).
        folder: where to; files of an earlier attempt are replaced, anything else there is an error.
        base: an adapter's base, `{digest, ref}` (see `adapter_base`). A full model stands alone and records none.
        quantization: how an adapter's base was quantized while it was trained; None for not at all.

    Returns:
        What model.json holds.

    Raises:
        InputError: the published tokenizer reloads as another one; the message names both classes.
        StageError: a weight is not finite, an adapter has no base, or `folder` holds other files.
    """
    adapter = hasattr(model, "peft_config")
    if adapter and not (base and base.get("digest")):
        raise StageError("an adapter cannot be published without the digest of the model it sits on")
    _refuse_non_finite(model)
    clear_folder(folder)
    if adapter:
        _write_adapter(model, folder)
    else:
        _write_full(model, folder)
    return finish_folder(
        folder,
        tokenizer,
        dtype=_dtype_name(model),
        base={"digest": base["digest"], "ref": base.get("ref", "")} if adapter and base else None,
        quantization=quantization,
    )


def clear_folder(folder: Path) -> None:
    """Make `folder` empty: files a model output may hold are removed, any other is an error.

    Raises:
        StageError: it holds something else; nothing is removed then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if others := _others(folder):
        raise StageError(
            f"{folder}: holds files that are no part of a model: {', '.join(others[:5])}; give an empty folder"
        )
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def finish_folder(
    folder: Path,
    tokenizer: Any,
    *,
    dtype: str,
    base: dict[str, str] | None = None,
    quantization: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Add the tokenizer and model.json to a folder that holds config and weights, and hold it to the contract.

    Raises:
        InputError: the tokenizer reloads as another one (case T7).
        StageError: a file is there that the contract does not know.
    """
    _write_tokenizer(tokenizer, folder)
    for name in (CONFIG, "generation_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            write_json(folder / name, {k: v for k, v in read_json(folder / name).items() if k not in _PROVENANCE})
    check_tokenizer(tokenizer, folder)
    info = {
        "form": "adapter" if is_adapter(folder) else "full",
        "base": base,
        "dtype": dtype,
        "tokenizer_sha256": tokenizer_sha256(folder),
        "chat_template_sha256": chat_template_sha256(_default_template(tokenizer)),
        "quantization": quantization,
    }
    write_json(folder / MODEL_INFO, info)
    if others := _others(folder):
        raise StageError(f"{folder}: these files are no part of a model output: {', '.join(others)}")
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)  # safetensors writes 0600, which a container's other user could not read
    return info


def check_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Reload the tokenizer of `folder` as transformers chooses it and compare it with `tokenizer` (case T7).

    Raises:
        InputError: they differ on a probe; the message names both classes and the probe.
    """
    from transformers import AutoTokenizer

    reloaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if difference := first_difference(tokenizer, reloaded):
        model_type = read_json(folder / CONFIG).get("model_type") if (folder / CONFIG).is_file() else None
        raise InputError(
            f"the tokenizer does not survive saving: it is a {type(tokenizer).__name__}, and AutoTokenizer reloads it "
            f"beside model_type {model_type} as a {type(reloaded).__name__} that differs ({difference}). Use the "
            "tokenizer that belongs to this model_type, or a model_type that keeps its tokenizer.json (llama, qwen3, "
            "mistral)"
        )


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, so that equal values are equal bytes."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_full(model: Any, folder: Path) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder, max_shard_size=SHARD_SIZE)


def _write_adapter(model: Any, folder: Path) -> None:
    """As PeftModel.save_pretrained, without the model card, the base's path and a look at the hub for its config."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    state = get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    save_file(
        {name: state[name].detach().clone().contiguous() for name in sorted(state)},
        folder / ADAPTER_WEIGHTS,
        metadata={"format": "pt"},
    )
    config = {**model.peft_config["default"].to_dict(), "base_model_name_or_path": "", "inference_mode": True}
    config.pop("revision", None)
    write_json(folder / ADAPTER_CONFIG, _plain(config))
    inner = model.get_base_model()
    inner.config.save_pretrained(folder)
    # the folder's weights are not quantized, its base's were; model.json says how
    kept = {name: value for name, value in read_json(folder / CONFIG).items() if name != "quantization_config"}
    write_json(folder / CONFIG, kept)
    if inner.generation_config is not None:
        inner.generation_config.save_pretrained(folder)


def _plain(value: Any) -> Any:
    """Sets sorted (their order changes with PYTHONHASHSEED), enums as their values."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _write_tokenizer(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    if (folder / TOKENIZER).is_file():
        from tokenizers import Tokenizer

        # the padding and truncation of whatever call came last are saved with it; they are no part of the token map
        plain = Tokenizer.from_file(str(folder / TOKENIZER))
        plain.no_padding()
        plain.no_truncation()
        plain.save(str(folder / TOKENIZER))
    path = folder / "tokenizer_config.json"
    config = read_json(path)
    if config.get("tokenizer_class") == "TokenizersBackend":
        # the same class by the name that transformers 4 knows too
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(path, config)


def _default_template(tokenizer: Any) -> str | None:
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def _others(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(name for name in files if not _ALLOWED.fullmatch(name))


def _refuse_non_finite(model: Any) -> None:
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(weight.detach().isfinite().all()):
            raise StageError(
                f"the model's weight {name} holds numbers that are not finite: training diverged, or {weight.dtype} is "
                "too narrow for them"
            )


def _dtype_name(model: Any) -> str:
    """The type of the floating-point weights that are written: the adapter's for a PeftModel."""
    weights = [
        w
        for n, w in model.named_parameters()
        if w.is_floating_point() and (not hasattr(model, "peft_config") or ".default." in n)
    ]
    return str(weights[0].dtype).removeprefix("torch.")

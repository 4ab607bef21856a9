"""What lies in a model folder, read without loading a weight: its form, its files, and what is unsafe in it.

A model folder is one that finery published (design section 3) or a user's own in the layout of transformers or peft.
Nothing here imports torch, unpickles a file, or runs code that lies beside weights.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from finery.errors import InputError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
MODEL_INFO = "model.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
_CONFIGS = (CONFIG, "tokenizer_config.json", "processor_config.json", ADAPTER_CONFIG)
_SENTENCEPIECE = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        InputError: it is not readable as one.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: is not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds a JSON {type(value).__name__}, an object was expected")
    return value


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, which needs a base model beside it."""
    return (folder / ADAPTER_CONFIG).is_file()


def check_folder(folder: Path) -> None:
    """Refuse a model folder that cannot be loaded, or only by running what lies in it (case S3).

    Raises:
        InputError: no folder, no config, code to run (`auto_map`), pickled weights only, quantized weights, or a
            weight file that is missing or cut short; the message names the file and the remedy.
    """
    if folder.is_file():
        raise InputError(f"{folder}: is a file; a model is a folder (a GGUF file goes through a stage of kind import)")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder")
    if not is_adapter(folder) and not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: has no {CONFIG}; a model folder holds {CONFIG}, safetensors and a tokenizer")
    for name in _CONFIGS:
        if (folder / name).is_file() and read_json(folder / name).get("auto_map"):
            raise InputError(
                f"{folder / name}: auto_map asks for the code beside the weights to be run (trust_remote_code), which "
                "finery never does; use a model whose model_type transformers has, and remove auto_map if it is one"
            )
    if (folder / CONFIG).is_file() and (quantized := read_json(folder / CONFIG).get("quantization_config")):
        method = quantized.get("quant_method", "unknown method") if isinstance(quantized, dict) else quantized
        raise InputError(f"{folder}: its weights are quantized ({method}); use the unquantized model, or its GGUF file")
    for file in weight_files(folder):
        _check_weights(file)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the folder's weights, in order of their names.

    Raises:
        InputError: there are none, or the index names one that is not there.
    """
    if is_adapter(folder):
        names = [ADAPTER_WEIGHTS]
    elif (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise InputError(f"{folder / INDEX}: has no weight_map of tensor names to files")
        names = sorted(set(weight_map.values()))
    else:
        names = [WEIGHTS]
    if outside := [name for name in names if Path(name).name != name]:
        raise InputError(f"{folder / INDEX}: names files outside the folder: {', '.join(outside)}")
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return [folder / name for name in names]
    if (folder / INDEX).is_file() and not is_adapter(folder):
        raise InputError(f"{folder / INDEX}: names weight files that are not there: {', '.join(missing)}")
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise InputError(
            f"{folder}: its weights are pickled ({', '.join(pickles)}), and loading a pickle (torch.load) runs what "
            "its author put in it, so finery reads safetensors only; get the safetensors version, or convert it "
            "where you trust it: load with weights_only=True, then save_pretrained"
        )
    raise InputError(
        f"{folder}: has no weights; expected {missing[0]}" + ("" if is_adapter(folder) else f" or {INDEX}")
    )


def _check_weights(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            names = list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: is not a whole safetensors file ({error}); fetch it again") from error
    index = file.parent / INDEX
    if index.is_file() and file.name != ADAPTER_WEIGHTS:
        promised = {name for name, where in read_json(index)["weight_map"].items() if where == file.name}
        if absent := sorted(promised - set(names)):
            raise InputError(f"{file}: lacks tensors that {INDEX} places in it: {', '.join(absent[:5])}")


def read_model_info(folder: Path) -> dict[str, Any]:
    """`model.json` of a published model; for a user's own folder the same facts, read from its files.

    Returns:
        `{form: full|adapter, base: {digest, ref} | None, dtype, tokenizer_sha256, chat_template_sha256, quantization}`.

    Raises:
        InputError: the folder or a file in it is not readable.
    """
    if (folder / MODEL_INFO).is_file():
        info = read_json(folder / MODEL_INFO)
        if info.get("form") not in ("full", "adapter"):
            raise InputError(f"{folder / MODEL_INFO}: form is {info.get('form')!r}; full or adapter was expected")
        return info
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    return {
        "form": "adapter" if is_adapter(folder) else "full",
        "base": None,
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "tokenizer_sha256": tokenizer_sha256(folder),
        "chat_template_sha256": chat_template_sha256(read_chat_template(folder)),
        "quantization": None,
    }


def adapter_base(folder: Path, *, digest: str, ref: str) -> dict[str, str]:
    """The `base` of an adapter trained on the model in `folder`: the model itself, or, when it is an adapter that
    training continues, that adapter's own base.

    Args:
        folder: the stage's input model.
        digest: the input's digest (`context.input_digests`).
        ref: the reference as written (`context.input_refs`).

    Raises:
        InputError: `folder` is an adapter that does not say what it sits on.
    """
    if not is_adapter(folder):
        return {"digest": digest, "ref": ref}
    base = read_model_info(folder).get("base")
    if not base:
        raise InputError(
            f"{folder}: an adapter without a known base; bring it in with a stage of kind import that names base"
        )
    return dict(base)


def adapter_quantization(folder: Path) -> dict[str, Any] | None:
    """How the base of the adapter in `folder` was quantized while it was trained; it stays so when training goes on."""
    return read_model_info(folder).get("quantization") if is_adapter(folder) else None


def vocabulary_size(config: dict[str, Any]) -> int | None:
    """`vocab_size` of a config.json, of its text part when it has several."""
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return int(size) if size else None


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds a tokenizer of its own; an adapter's may be its base's."""
    return any((folder / name).is_file() for name in (TOKENIZER, *_SENTENCEPIECE))


def tokenizer_sha256(folder: Path) -> str | None:
    """sha256 of the token map: tokenizer.json without its padding and truncation state, else the vocabulary files."""
    if (folder / TOKENIZER).is_file():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    parts = [(name, (folder / name).read_bytes()) for name in _SENTENCEPIECE if (folder / name).is_file()]
    if not parts:
        return None
    return hashlib.sha256(b"".join(name.encode() + b"\0" + data for name, data in parts)).hexdigest()


def read_chat_template(folder: Path) -> str | None:
    """The folder's default chat template, as text; None when there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    template = read_json(path).get("chat_template") if path.is_file() else None
    if isinstance(template, list):
        template = next((item["template"] for item in template if item.get("name") == "default"), None)
    return template


def chat_template_sha256(template: str | None) -> str | None:
    """sha256 of a chat template's text; None for none."""
    return hashlib.sha256(template.encode()).hexdigest() if template else None

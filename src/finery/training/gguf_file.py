"""A GGUF file as a model of plain, unquantized weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from finery.errors import InputError
from finery.training.models import first_line

_MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether the file begins as a GGUF does."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def load_gguf(path: Path, *, dtype: str | None = None) -> tuple[Any, Any, str]:
    """The causal LM and the tokenizer in a GGUF file, dequantized by transformers.

    Args:
        path: the file.
        dtype: the weights' type; float32 by default.

    Returns:
        The model, in eval mode and free of any quantizer, so that it can be saved and trained; the tokenizer; and the
        types its tensors were stored in, for instance "Q4_1, F32", the commonest first.

    Raises:
        InputError: it is no GGUF, is one part of several, or holds an architecture that transformers cannot read.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not is_gguf(path):
        raise InputError(f"{path}: is not a GGUF file (it does not begin with the letters GGUF)")
    transformers.utils.logging.disable_progress_bar()
    kept_packed = getattr(transformers, "GgufConfig", None)
    # newer transformers leave weights in their blocks unless told otherwise: such a model can't be saved or trained
    options = {"quantization_config": kept_packed(dequantize=True)} if kept_packed else {}
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, "local_files_only": True}
    try:
        types = stored_types(path)
        model, loading = AutoModelForCausalLM.from_pretrained(
            **where, dtype=getattr(torch, dtype or "float32"), output_loading_info=True, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except (OSError, ValueError, KeyError, IndexError, RuntimeError, ImportError, NotImplementedError) as error:
        raise InputError(f"{path}: this GGUF cannot be read ({first_line(error)})") from error
    if missing := sorted({*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])}):
        raise InputError(
            f"{path}: {len(missing)} weights that {type(model).__name__} needs are missing or of another shape "
            f"({', '.join(missing[:5])}); a file split in parts has to be joined first (llama-gguf-split --merge)"
        )
    return unquantized(model), tokenizer, types


def unquantized(model: Any) -> Any:
    """The model as one that transformers will save: in its class's plain form, without a quantizer or its config."""
    config = model.config
    for name in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    if getattr(model, "hf_quantizer", None) is None:
        return model
    import torch

    with torch.random.fork_rng(devices=[]):
        plain = type(model)(config).to(model.dtype)
    plain.load_state_dict(model.state_dict(), strict=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain.eval()


def stored_types(path: Path) -> str:
    """The types of a GGUF's tensors by the weights they hold, the commonest first."""
    from gguf import GGUFReader

    counts: Counter[str] = Counter()
    for tensor in GGUFReader(path).tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    return ", ".join(name for name, _ in counts.most_common())

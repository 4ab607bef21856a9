"""pipelines/gsm8k-qlora.yaml, as far as a CPU without a network can try it.

Its own stages and settings run, from data to the gate, on a tiny random Qwen2 with Qwen2's own tokenizer class; what
the test sets are the model, the data, the sizes, and what needs a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "pipelines" / "gsm8k-qlora.yaml"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = ["Ann", "Bob", "Cid", "Dora", "Eva", "Finn", "Gus", "Hal"]
TRIED = ["base", "exam_data", "code", "corpus", "sft", "gate"]


def _rows(first: int, count: int) -> list[dict[str, str]]:
    """In GSM8K's form, calculator marks and all."""
    rows = []
    for n in range(first, first + count):
        a, b, name = 2 + n, 3 + n % 5, NAMES[n % len(NAMES)]
        rows.append(
            {
                "question": f"{name} has {a} apples and buys {b} more on day {n}. How many apples has {name}?",
                "answer": f"{name} has {a}+{b}=<<{a}+{b}={a + b}>>{a + b} apples.\n#### {a + b}",
            }
        )
    return rows


def _tiny_qwen(folder: Path, texts: list[str]) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(texts, 512)
    tokenizer.add_special_tokens({"eos_token": marks[2], "pad_token": marks[0], "additional_special_tokens": marks[1:]})
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=640,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(mark) for mark in (marks[2], marks[0])]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "Qwen2Tokenizer"


def test_plan_accepts_it_offline(project) -> None:
    path = project.write("gsm8k-qlora.yaml", FILE.read_text())
    stages = project.plan(path.name)
    assert {name for name, stage in stages.items() if stage["state"] == "unresolved"} == {"base", "small"}
    assert "nf4, double quantization, computes in bfloat16" in project.finery("plan", path.name).stdout


@pytest.mark.slow
def test_its_data_sft_and_gate_run_on_a_tiny_qwen2(project) -> None:
    yaml = YAML(typ="safe", pure=True)
    whole = yaml.load(FILE.read_text())
    whole["stages"] = {name: stage for name, stage in whole["stages"].items() if name in TRIED}
    with (project.folder / "p.yaml").open("w") as file:
        yaml.dump(whole, file)
    train, test = _rows(0, 60), _rows(100, 5)
    leak = test[0]["question"]
    for name, rows in (("train", [*train, {"question": leak, "answer": test[0]["answer"]}]), ("test", test)):
        project.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    texts = [row["question"] + row["answer"] for row in train]
    _tiny_qwen(project.folder / "tiny", [*texts, TEMPLATE, "system user assistant"])

    columns = "{prompt: question, completion: answer, answer: answer}"
    sets = [
        "base.from=./tiny",
        *(
            f"{stage}.sources=[{{kind: file, path: ./{name}.jsonl, columns: {columns}}}]"
            for stage, name in (("exam_data", "test"), ("corpus", "train"))
        ),
        "code.verify=[{kind: code_tests, workers: 2}]",
        *(f"{stage}.resources={{cpus: 1}}" for stage in ("code", "sft", "gate")),
        "sft.dtype=float32", "sft.bf16=false", "sft.optim=adamw_torch_fused",
        "sft.quantization.bnb_4bit_compute_dtype=float32",
        "gate.sampling.max_completion_length=16", "gate.max_prompts=4",
    ]  # fmt: skip
    summary = project.run("p.yaml", *(part for text in sets for part in ("--set", f"stages.{text}")))
    assert {name: stage["state"] for name, stage in summary["stages"].items()} == dict.fromkeys(TRIED, "Completed")

    made = {name: project.home / "store" / stage["kind"] / stage["key"] for name, stage in summary["stages"].items()}
    corpus, sft, gate = (summary["stages"][name]["metrics"] for name in ("corpus", "sft", "gate"))
    assert (corpus["read"], corpus["kept"], corpus["rejected"]) == (61, 60, 1)
    (rejected,) = (json.loads(line) for line in next(made["corpus"].rglob("rejects.jsonl")).read_text().splitlines())
    assert rejected["code"] == "contaminated"
    assert sft["steps"] == -(-corpus["rows_sft"] // 16)
    model = json.loads(next(made["sft"].rglob("model.json")).read_text())
    assert model["quantization"] | {"dtype": ""} == {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "dtype": "", "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float32",
    }  # fmt: skip
    adapter = json.loads(next(made["sft"].rglob("adapter_config.json")).read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (64, 16, 0.1)
    assert gate["prompts"] == 4 and gate["excluded"] == 0
    samples = [json.loads(line) for line in next(made["gate"].rglob("samples.jsonl")).read_text().splitlines()]
    assert len(samples) == 4 * (16 + 1)

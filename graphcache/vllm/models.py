"""Small models with random weights, written where vLLM can load them: for tests, demos and benchmarks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from graphcache.errors import UnknownNameError

FAMILIES = {
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "bert": "BertModel",
    "bert-classifier": "BertForSequenceClassification",
    "xlm-roberta": "XLMRobertaModel",
}
"""The model families, and the class of each: its architecture, in transformers and in vLLM."""

VOCABULARY = 512
HEAD_DIM = 64
PADDING = 1
"""The id of the padding token, where a family's positions depend on it."""

CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""How a conversation becomes a prompt: a line for each message."""


def write_model(
    directory: str | Path,
    *,
    family: str = "qwen3",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    max_tokens: int = 4096,
    seed: int = 0,
    std: float = 0.08,
) -> Path:
    """Write a model's configuration, random weights (float32) and a byte tokenizer; return the directory.

    The tokenizer takes conversations too, for models that chat.
    Weights are normal with standard deviation ``std``, wide enough that attention matters: among weights of
    a thousandth, the wrong mask can't be seen in the output.

    Raises:
        UnknownNameError: a family that is not in `FAMILIES`.
    """
    import torch
    import transformers
    from safetensors.torch import save_file

    if family not in FAMILIES:
        raise UnknownNameError.among("family", family, FAMILIES)
    make = getattr(transformers, FAMILIES[family])
    sizes: dict[str, Any] = {
        "architectures": [FAMILIES[family]],
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": max_tokens,
        **_more(family, heads, max_tokens),
    }
    config = make.config_class(**sizes)
    config.dtype = torch.float32
    model = make(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, std, generator=generator)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    config.save_pretrained(directory)
    save_file(weights, Path(directory) / "model.safetensors", {"format": "pt"})
    _write_tokenizer(directory)
    return Path(directory)


def _more(family: str, heads: int, max_tokens: int) -> dict[str, Any]:
    """Return the fields that a family has beside those of all."""
    match family:
        case "bert":
            return {}
        case "bert-classifier":
            return {"num_labels": 8}
        case "xlm-roberta":  # whose positions begin behind that of its padding token
            return {
                "max_position_embeddings": max_tokens + PADDING + 1,
                "pad_token_id": PADDING,
                "position_embedding_type": "absolute",
            }
    return {
        "num_key_value_heads": max(1, heads // 2),
        "head_dim": HEAD_DIM,
        "tie_word_embeddings": True,
    }


def _write_tokenizer(directory: str | Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Texts are made of bytes alone; what a model generates reads as syllables, where it is not a byte.
    syllables = map("".join, product("bdfghjklmnprstvwz", "aeiou", ("", "n", "Ġ")))
    words = [*alphabet, "<eos>", "<pad>", *syllables][:VOCABULARY]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.chat_template = CHAT
    fast.save_pretrained(directory)

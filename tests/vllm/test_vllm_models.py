"""The models that are written on the spot."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoTokenizer

from graphcache.vllm.models import FAMILIES, VOCABULARY, write_model


def test_a_written_model_takes_texts_and_conversations(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_model(tmp_path / "model", layers=1))
    text = "two words, and \u00e9"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "system: be brief\nuser: why?\nassistant: "


def test_every_token_of_a_written_model_is_a_text_of_its_own(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_model(tmp_path / "model", layers=1))
    assert len(tokenizer) == VOCABULARY
    assert len(set(tokenizer.convert_ids_to_tokens(range(VOCABULARY)))) == VOCABULARY
    assert "" not in map(tokenizer.decode, range(VOCABULARY))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_written_with_the_architecture_that_it_names(tmp_path, family):
    config = AutoConfig.from_pretrained(
        write_model(tmp_path / "model", family=family, layers=1, max_tokens=32)
    )
    assert config.architectures == [FAMILIES[family]]
    assert config.max_position_embeddings == (34 if family == "xlm-roberta" else 32)
